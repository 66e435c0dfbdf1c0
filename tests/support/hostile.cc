#include "support/hostile.h"

#include <immintrin.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <stdexcept>

#include "support/stress.h"

namespace jiffy {

namespace {

// Blocks of many sizes, filled with a pattern and looked at again before they are freed.
void use_malloc(HostileRun& run, uint64_t seed) {
  Random random(seed);
  std::vector<std::pair<unsigned char*, size_t>> blocks(64);
  std::map<uint64_t, std::string> words;
  while (run.more()) {
    auto& [block, size] = blocks[random.below(blocks.size())];
    if (block != nullptr) {
      for (size_t i = 0; i < size; ++i) {
        if (block[i] != static_cast<unsigned char>(size))
          run.fail("malloc: a block was written to");
      }
      std::free(block);
    }
    size = 1 + random.below(random.below(16) == 0 ? 70'000 : 500);
    block = static_cast<unsigned char*>(std::malloc(size));
    std::memset(block, static_cast<unsigned char>(size), size);
    words[random.below(50)] = std::string(random.below(60), 'x');
    if (words.size() > 40) words.clear();
  }
  for (auto& [block, size] : blocks) std::free(block);
}

// One FILE for all: its lock is the library's, and its owner is a thread.
void use_printf(HostileRun& run, uint64_t seed) {
  std::FILE* file = std::fopen(run.file.c_str(), "ae");
  if (file == nullptr) return run.fail("printf: cannot open the file");
  static std::FILE* shared = nullptr;
  static std::once_flag once;
  std::call_once(once, [&] { shared = std::tmpfile(); });
  uint64_t i = 0;
  for (; run.more(); ++i) {
    std::fprintf(file, "%llu %llu %.3f end\n", static_cast<unsigned long long>(seed),
                 static_cast<unsigned long long>(i), static_cast<double>(i) / 3);
    std::fprintf(shared, "%d %s\n", 7, "seven");
    if (i % 4096 == 0) std::rewind(shared);
  }
  std::fclose(file);
}

int thrower(int depth) {
  const std::string guard(40, 'g');  // has a destructor to run
  if (depth == 0) throw std::runtime_error("deep " + std::to_string(depth));
  return thrower(depth - 1) + static_cast<int>(guard.size());
}

void use_exceptions(HostileRun& run, uint64_t seed) {
  Random random(seed);
  while (run.more()) {
    try {
      try {
        (void)thrower(static_cast<int>(random.below(8)));
        run.fail("exceptions: nothing was thrown");
      } catch (const std::runtime_error& e) {
        if (std::strcmp(e.what(), "deep 0") != 0) run.fail("exceptions: another one's was caught");
        if (std::uncaught_exceptions() != 0) run.fail("exceptions: the count is not one's own");
        throw std::logic_error("second");
      }
    } catch (const std::logic_error& e) {
      if (std::strcmp(e.what(), "second") != 0) run.fail("exceptions: another one's was rethrown");
    }
  }
}

// All 32 wide registers hold a value of this fiber over some time.
__attribute__((target("avx512f"))) void use_avx512_loop(HostileRun& run, uint64_t seed) {
  const __m512i mine = _mm512_set1_epi64(static_cast<int64_t>(seed));
  while (run.more()) {
    __m512i a = mine, b = _mm512_add_epi64(mine, mine), sum = _mm512_setzero_si512();
    __mmask8 mask = static_cast<__mmask8>(seed);
    for (int i = 0; i < 2000; ++i) {
      asm volatile("" : "+v"(a), "+v"(b), "+v"(sum), "+k"(mask));
      sum = _mm512_add_epi64(sum, _mm512_sub_epi64(b, a));
    }
    const auto want = static_cast<int64_t>(seed * 2000);
    if (_mm512_cmpneq_epi64_mask(sum, _mm512_set1_epi64(want)) != 0 ||
        mask != static_cast<__mmask8>(seed)) {
      run.fail("avx512: a register was changed");
    }
  }
}

void use_avx512(HostileRun& run, uint64_t seed) {
  if (__builtin_cpu_supports("avx512f")) {
    use_avx512_loop(run, seed);
    return;
  }
  while (run.more()) {
    double x = static_cast<double>(seed);
    for (int i = 0; i < 2000; ++i) asm volatile("" : "+x"(x));
    if (x != static_cast<double>(seed)) run.fail("sse: a register was changed");
  }
}

void use_errno(HostileRun& run, uint64_t seed) {
  const int mine = 1 + static_cast<int>(seed % 100);
  while (run.more()) {
    errno = mine;
    for (int i = 0; i < 500; ++i) asm volatile("" ::: "memory");
    if (errno != mine) run.fail("errno: another one's");
    (void)::close(-1);
    if (errno != EBADF) run.fail("errno: not that of my call");
  }
}

void use_std_mutex(HostileRun& run, uint64_t) {
  static std::mutex mutex;
  static std::recursive_mutex recursive;  // knows its owner by a thread's number
  static uint64_t first = 0, second = 0;
  while (run.more()) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      ++first;
      for (int i = 0; i < 200; ++i) asm volatile("" ::: "memory");
      if (++second != first) run.fail("std::mutex: two were inside");
    }
    const std::lock_guard<std::recursive_mutex> outer(recursive);
    const std::lock_guard<std::recursive_mutex> inner(recursive);
  }
}

template <int kNumber>
int initialised_once() {
  static const int value = [] {
    int x = kNumber;
    for (int i = 0; i < 20'000; ++i) asm volatile("" : "+r"(x));
    return x;
  }();
  return value;
}

void use_static_init(HostileRun& run, uint64_t) {
  constexpr size_t kFlags = 4096;
  static std::once_flag flags[kFlags];
  static int calls[kFlags];
  thread_local uint64_t mine = 0;
  mine = 1;
  while (run.more()) {
    if (initialised_once<1>() != 1 || initialised_once<2>() != 2 || initialised_once<3>() != 3) {
      run.fail("static: not initialised");
    }
    // Each fiber comes to each flag: at most of them it meets another one.
    std::call_once(flags[mine % kFlags], [&] {
      for (int i = 0; i < 2000; ++i) asm volatile("" ::: "memory");
      ++calls[mine % kFlags];
    });
    if (calls[mine % kFlags] != 1) run.fail("call_once: not once");
    ++mine;
  }
  if (mine == 0) run.fail("thread_local: lost");
}

void use_clock(HostileRun& run, uint64_t) {
  timespec last = {}, now = {};
  while (run.more()) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec < last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec < last.tv_nsec)) {
      run.fail("clock: went back");
    }
    last = now;
  }
}

void use_spin(HostileRun& run, uint64_t seed) {
  uint64_t x = seed | 1;
  while (run.more()) {
    uint64_t y = seed | 1;
    for (int i = 0; i < 5000; ++i) {
      x = x * 6364136223846793005ull + 1;
      y = y * 6364136223846793005ull + 1;
    }
    if (x == 0 && y == 1) run.fail("spin: impossible");
  }
}

}  // namespace

const std::vector<Hostile>& hostile_workloads() {
  static const std::vector<Hostile> all = {
      {"malloc", use_malloc},           {"printf", use_printf}, {"exceptions", use_exceptions},
      {"avx512", use_avx512},           {"errno", use_errno},   {"std_mutex", use_std_mutex},
      {"static_init", use_static_init}, {"clock", use_clock},   {"spin", use_spin},
  };
  return all;
}

bool file_is_intact(const std::string& path, uint64_t* lines) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return false;
  char line[256];
  std::map<unsigned long long, unsigned long long> next;
  bool intact = true;
  *lines = 0;
  while (intact && std::fgets(line, sizeof line, file) != nullptr) {
    unsigned long long seed = 0, i = 0;
    double third = 0;
    char word[8] = "";
    intact = std::sscanf(line, "%llu %llu %lf %3s", &seed, &i, &third, word) == 4 &&
             std::strcmp(word, "end") == 0 && i == next[seed]++;
    ++*lines;
  }
  std::fclose(file);
  return intact;
}

}  // namespace jiffy
