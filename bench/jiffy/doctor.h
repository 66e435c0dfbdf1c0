// `jiffy doctor`: what this machine offers jiffy, and what each missing piece costs.
#pragma once

#include <string>
#include <vector>

namespace jiffy {

struct DoctorOptions {
  bool json = false;
  std::string command_line;
};

enum class CheckState : uint8_t {
  kOk,
  kInfo,      // nothing good or bad about it
  kDegraded,  // works, at the cost named
  kMissing,   // what is named does not work at all
};
const char* check_state_name(CheckState state);

struct Check {
  std::string name;
  CheckState state;
  std::string found;
  std::string cost;       // what it costs as found, and what helps; empty where all is well
  bool required = false;  // without it no runtime starts
};

// doctor_checks.cc: in the order of the table.
std::vector<Check> examine_machine();

int run_doctor(const DoctorOptions& options);

}  // namespace jiffy
