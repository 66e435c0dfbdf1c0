#pragma once
// Small text files of /sys, /proc and cgroups, and the parsing they need. For read_topology() and
// its kind: reads of files that may be missing, or hold something unexpected, which is said and not
// fatal.

#include <jiffy/topology.h>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace jiffy {

// Without white space and NULs at the ends.
std::string_view trimmed(std::string_view text);
// For messages: what was found, in quotes, cut short and without control characters.
std::string quoted(std::string_view text);
// Always at least one part; empty parts are kept. The parts point into `text`.
std::vector<std::string_view> split(std::string_view text, char separator);

// The whole text as a decimal number that fits T; nothing else: no space, no plus, no sign for an
// unsigned T.
template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads files below one root and collects complaints about what they hold. Paths are absolute,
// without the root. A file that is missing or unreadable gives nothing; one that is malformed gives
// nothing and a complaint. Blocks on reads.
class SystemFiles {
 public:
  // `errors` outlives this object.
  SystemFiles(std::string root, std::vector<std::string>& errors)
      : root_(std::move(root)), errors_(errors) {}

  std::optional<std::string> text(const std::string& path) const;
  std::optional<CpuSet> cpu_list(const std::string& path);
  template <typename T>
  std::optional<T> number(const std::string& path) {
    const std::optional<std::string> found = text(path);
    if (!found) return std::nullopt;
    const std::optional<T> value = parse_number<T>(trimmed(*found));
    if (!value) complain(path, *found, "a decimal number");
    return value;
  }
  // N of each entry called `prefix`N in a directory.
  CpuSet numbered_entries(const std::string& path, std::string_view prefix) const;

  void complain(const std::string& path, std::string_view found, std::string_view expected);

 private:
  const std::string root_;
  std::vector<std::string>& errors_;
};

}  // namespace jiffy
