#include "doctor.h"

#include <cstdio>

#include "exit_codes.h"
#include "json_report.h"
#include "text_table.h"

namespace jiffy {

const char* check_state_name(CheckState state) {
  static constexpr const char* kNames[] = {"ok", "info", "degraded", "missing"};
  return kNames[static_cast<size_t>(state)];
}

namespace {

std::string text(const std::vector<Check>& checks) {
  TextTable table({"what", "", "found"}, 3);
  for (const Check& check : checks) {
    table.add({check.name, check_state_name(check.state), check.found});
  }
  std::string out = table.to_string();
  std::string costs;
  for (const Check& check : checks) {
    if (!check.cost.empty()) costs += "  " + check.name + ": " + check.cost + "\n";
  }
  return costs.empty() ? out + "\nNothing is missing.\n" : out + "\nWhat it costs:\n" + costs;
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  const std::vector<Check> checks = examine_machine();
  const std::string out = options.json ? doctor_json(options, checks) : text(checks);
  std::fputs(out.c_str(), stdout);
  for (const Check& check : checks) {
    if (check.required && check.state == CheckState::kMissing) return kExitMissing;
  }
  return kExitOk;
}

}  // namespace jiffy
