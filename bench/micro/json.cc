// The only file here that knows of the JSON library.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "micro/report.h"

namespace jiffy::micro {

namespace {

using Json = nlohmann::ordered_json;

Json range_json(const Range& range) {
  return {{"median", range.median}, {"min", range.min}, {"max", range.max}};
}

Json row_json(const Measured& measured) {
  const Row& row = *measured.row;
  const Outcome& o = measured.outcome;
  Json json = {{"row", row.name}, {"what", row.what}, {"unit", "ns"}};
  json["ours"] = o.skipped.empty() ? range_json(o.ours) : Json();
  json["reference"] = nullptr;
  if (o.reference) {
    Json reference = {{"name", row.reference}};
    reference.update(range_json(*o.reference));
    json["reference"] = reference;
  }
  json["ratio"] = o.ratio ? Json(*o.ratio) : Json();
  json["bar"] = row.bar.text;
  json["bar_kind"] = row.bar.kind == Bar::kRatio ? "ratio" : "ns";
  json["bar_value"] = row.bar.limit;
  json["met"] = o.skipped.empty() ? Json(o.met) : Json();
  if (!o.skipped.empty()) json["skipped"] = o.skipped;
  if (o.skipped.empty() && !o.met && floor_ns(row.floor) > 0) {
    json["floor_ns"] = floor_ns(row.floor);
    json["floor"] = floor_text(row.floor);
  }
  if (!o.notes.empty()) json["notes"] = o.notes;
  return json;
}

}  // namespace

bool write_json(const std::string& path, const Environment& e, const std::vector<Measured>& rows) {
  Json json = {{"schema", "jiffy-micro-1"},
               {"environment",
                {{"kernel", e.kernel},
                 {"cpu", e.cpu},
                 {"compiler", e.compiler},
                 {"allowed_cpus", e.allowed_cpus},
                 {"load_1min", e.load_1min},
                 {"repetitions", e.repetitions},
                 {"started_at_utc", e.started_at_utc}}}};
  json["rows"] = Json::array();
  for (const Measured& measured : rows) json["rows"].push_back(row_json(measured));
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  file.close();
  if (file) return true;
  std::fprintf(stderr, "jiffy_micro: cannot write %s: %s\n", path.c_str(), std::strerror(errno));
  return false;
}

}  // namespace jiffy::micro
