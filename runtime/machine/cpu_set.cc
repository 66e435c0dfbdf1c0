#include <jiffy/topology.h>

#include <algorithm>
#include <bit>

#include "machine/system_files.h"

namespace jiffy {
namespace {
constexpr unsigned kWordBits = 64;
}  // namespace

void CpuSet::set(unsigned id) {
  if (id > kMaxCpuId) return;
  if (id / kWordBits >= words_.size()) words_.resize(id / kWordBits + 1);
  words_[id / kWordBits] |= std::uint64_t{1} << (id % kWordBits);
}

void CpuSet::clear(unsigned id) {
  if (id / kWordBits >= words_.size()) return;
  words_[id / kWordBits] &= ~(std::uint64_t{1} << (id % kWordBits));
  trim();
}

bool CpuSet::test(unsigned id) const {
  return id / kWordBits < words_.size() && (words_[id / kWordBits] >> (id % kWordBits) & 1) != 0;
}

std::size_t CpuSet::count() const {
  std::size_t n = 0;
  for (const std::uint64_t word : words_) n += static_cast<std::size_t>(std::popcount(word));
  return n;
}

std::vector<unsigned> CpuSet::ids() const {
  std::vector<unsigned> all;
  for_each([&](unsigned id) { all.push_back(id); });
  return all;
}

CpuSet& CpuSet::operator&=(const CpuSet& other) {
  words_.resize(std::min(words_.size(), other.words_.size()));
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  trim();
  return *this;
}

CpuSet& CpuSet::operator|=(const CpuSet& other) {
  words_.resize(std::max(words_.size(), other.words_.size()));
  for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
  return *this;
}

std::string CpuSet::to_string() const {
  std::string text;
  for (std::optional<unsigned> low = first(); low;) {
    unsigned high = *low;
    while (test(high + 1)) ++high;
    if (!text.empty()) text += ',';
    text += std::to_string(*low);
    if (high != *low) text += '-' + std::to_string(high);
    low = next(high);
  }
  return text;
}

std::optional<unsigned> CpuSet::at_or_above(std::size_t id) const {
  for (std::size_t i = id / kWordBits; i < words_.size(); ++i) {
    std::uint64_t word = words_[i];
    if (i == id / kWordBits) word &= ~std::uint64_t{0} << (id % kWordBits);
    if (word != 0)
      return static_cast<unsigned>(i * kWordBits) + static_cast<unsigned>(std::countr_zero(word));
  }
  return std::nullopt;
}

void CpuSet::trim() {
  while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

namespace {

// "LOW", "LOW-HIGH" or "LOW-HIGH:USED/GROUP".
struct CpuRange {
  unsigned low = 0;
  unsigned high = 0;
  unsigned used = 1;
  unsigned group = 1;
};

std::optional<CpuRange> parse_cpu_range(std::string_view item) {
  CpuRange range;
  const std::size_t colon = item.find(':');
  const std::string_view ids = item.substr(0, colon);
  const std::size_t dash = ids.find('-');
  const auto low = parse_number<unsigned>(ids.substr(0, dash));
  if (!low) return std::nullopt;
  range.low = range.high = *low;
  if (dash != std::string_view::npos) {
    const auto high = parse_number<unsigned>(ids.substr(dash + 1));
    if (!high) return std::nullopt;
    range.high = *high;
  }
  if (colon != std::string_view::npos) {
    const std::string_view stride = item.substr(colon + 1);
    const std::size_t slash = stride.find('/');
    if (dash == std::string_view::npos || slash == std::string_view::npos) return std::nullopt;
    const auto used = parse_number<unsigned>(stride.substr(0, slash));
    const auto group = parse_number<unsigned>(stride.substr(slash + 1));
    if (!used || !group) return std::nullopt;
    range.used = *used;
    range.group = *group;
  }
  const bool sensible = range.low <= range.high && range.high <= CpuSet::kMaxCpuId &&
                        range.used >= 1 && range.used <= range.group;
  return sensible ? std::optional(range) : std::nullopt;
}

}  // namespace

ParsedCpuList parse_cpu_list(std::string_view text) {
  ParsedCpuList result;
  const std::string_view list = trimmed(text);
  if (list.empty()) return result;
  for (const std::string_view item : split(list, ',')) {
    const std::optional<CpuRange> range = parse_cpu_range(item);
    if (!range) {
      return {{},
              "found " + quoted(item) + " in " + quoted(list) +
                  ", expected ID, LOW-HIGH or LOW-HIGH:USED/GROUP, ids up to " +
                  std::to_string(CpuSet::kMaxCpuId)};
    }
    for (unsigned id = range->low; id <= range->high; ++id) {
      if ((id - range->low) % range->group < range->used) result.cpus.set(id);
    }
  }
  return result;
}

}  // namespace jiffy
