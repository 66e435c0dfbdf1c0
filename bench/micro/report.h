// How the rows are shown: a table for people, JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "micro/harness.h"

namespace jiffy::micro {

struct Measured {
  const Row* row;
  Outcome outcome;
};

// Where it was measured.
struct Environment {
  std::string kernel, cpu, compiler, started_at_utc;
  int allowed_cpus = 0;
  double load_1min = 0;
  int repetitions = 0;
};
Environment read_environment(const Settings& settings);

void print_environment(const Environment& environment);
void print_header();
void print_row(const Measured& measured);

// Schema "jiffy-micro-1"; times in ns. False if the file cannot be written; says so on stderr.
bool write_json(const std::string& path, const Environment& environment,
                const std::vector<Measured>& rows);

}  // namespace jiffy::micro
