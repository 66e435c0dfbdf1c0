// Tables and quantities for people.
#pragma once

#include <string>
#include <vector>

namespace jiffy {

// Columns as wide as their widest cell; text to the left, everything else to the right. A row may
// be shorter than the header.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header, int text_columns = 1);
  void add(std::vector<std::string> row);
  std::string to_string() const;

 private:
  int text_columns_;
  std::vector<std::vector<std::string>> rows_;
};

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
// "850 ns", "2.13 us", "3.98 ms", "1.20 s".
std::string format_ns(double ns);
// "312", "45.2k", "1.31M".
std::string format_count(double n);
// "256 KiB", "1 MiB".
std::string format_bytes(double bytes);

}  // namespace jiffy
