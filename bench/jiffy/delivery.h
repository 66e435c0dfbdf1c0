// How requests to reschedule reach the fibers of a measurement: --delivery.
#pragma once

#include <jiffy/options.h>

namespace jiffy {

inline const char* delivery_name(Delivery delivery) {
  return delivery == Delivery::kSignals ? "signals" : "safe_points";
}

// Of a runtime whose fibers are preemptible, with signals, or cooperative, at safe points. Where
// thread control blocks cannot be had, the former do without; the runtime's options then say safe
// points.
inline Options delivery_options(Delivery delivery) {
  if (delivery == Delivery::kSafePoints) return {};
  Options options = Options::preemptible();
  options.allow_shared_tls = true;
  return options;
}

// What it came to here.
inline const char* delivery_note(Delivery asked, Delivery got) {
  return asked == got ? "" : " (signals were asked for, and cannot be had here)";
}

}  // namespace jiffy
