// A line on stderr that says what the program is at, where stderr is a terminal.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

namespace jiffy {

class Progress {
 public:
  Progress() : on_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() { show(""); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& line) const {
    if (on_) std::fprintf(stderr, "\r\033[K%s", line.c_str());
  }

 private:
  const bool on_;
};

}  // namespace jiffy
