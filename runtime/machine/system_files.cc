#include "machine/system_files.h"

#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <memory>

namespace jiffy {

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) {
    return c == '\0' || std::isspace(static_cast<unsigned char>(c)) != 0;
  };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    out += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
  }
  return out + (text.size() > kLongest ? "...'" : "'");
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// stdio, because a stream's iterators throw on what cgroup files answer to a read (ENODEV,
// EOPNOTSUPP) or on a directory.
std::optional<std::string> SystemFiles::text(const std::string& path) const {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen((root_ + path).c_str(), "re"), &std::fclose);
  if (!file) return std::nullopt;
  std::string all;
  std::array<char, 4096> chunk;
  while (const std::size_t n = std::fread(chunk.data(), 1, chunk.size(), file.get()))
    all.append(chunk.data(), n);
  if (std::ferror(file.get()) != 0) return std::nullopt;
  return all;
}

std::optional<CpuSet> SystemFiles::cpu_list(const std::string& path) {
  const std::optional<std::string> found = text(path);
  if (!found) return std::nullopt;
  ParsedCpuList parsed = parse_cpu_list(*found);
  if (parsed.ok()) return std::move(parsed.cpus);
  errors_.push_back(root_ + path + ": " + parsed.error);
  return std::nullopt;
}

CpuSet SystemFiles::numbered_entries(const std::string& path, std::string_view prefix) const {
  CpuSet numbers;
  std::error_code error;
  std::filesystem::directory_iterator entry(root_ + path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    if (const auto n = parse_number<unsigned>(std::string_view(name).substr(prefix.size())))
      numbers.set(*n);
  }
  return numbers;
}

void SystemFiles::complain(const std::string& path, std::string_view found,
                           std::string_view expected) {
  errors_.push_back(root_ + path + ": found " + quoted(trimmed(found)) + ", expected " +
                    std::string(expected));
}

}  // namespace jiffy
