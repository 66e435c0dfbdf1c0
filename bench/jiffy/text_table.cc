#include "text_table.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace jiffy {

TextTable::TextTable(std::vector<std::string> header, int text_columns)
    : text_columns_(text_columns) {
  rows_.push_back(std::move(header));
}

void TextTable::add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

std::string TextTable::to_string() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    if (row.size() > widths.size()) widths.resize(row.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      const bool left = static_cast<int>(i) < text_columns_;
      line += (i == 0 ? "" : "  ") + (left ? row[i] + padding : padding + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

namespace {

struct Unit {
  double size;
  const char* name;
};

// Three digits, in the largest unit that leaves a whole number.
std::string in_units(double value, const std::vector<Unit>& units) {
  const Unit* unit = &units.front();
  for (const Unit& u : units) {
    if (std::fabs(value) >= u.size) unit = &u;
  }
  const double scaled = value / unit->size;
  const int decimals = unit->size == 1 || scaled == std::floor(scaled) ? 0
                       : scaled < 10                                   ? 2
                       : scaled < 100                                  ? 1
                                                                       : 0;
  return format("%.*f%s", decimals, scaled, unit->name);
}

}  // namespace

std::string format_ns(double ns) {
  return in_units(ns, {{1, " ns"}, {1e3, " us"}, {1e6, " ms"}, {1e9, " s"}});
}

std::string format_count(double n) { return in_units(n, {{1, ""}, {1e3, "k"}, {1e6, "M"}}); }

std::string format_bytes(double bytes) {
  return in_units(bytes, {{1, " B"}, {1024, " KiB"}, {1024 * 1024, " MiB"}});
}

}  // namespace jiffy
