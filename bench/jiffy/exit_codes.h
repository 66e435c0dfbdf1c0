// What the program's exit status means; --help prints this table.
#pragma once

namespace jiffy {

enum ExitCode : int {
  kExitOk = 0,       // also after an interrupt (SIGINT): what was measured is shown
  kExitFailed = 1,   // a check failed, or the system refused something
  kExitUsage = 2,    // a wrong option or value
  kExitRefused = 3,  // asked for something that would do harm
  kExitMissing = 4,  // this machine lacks what the command needs
};

inline constexpr const char* kExitCodesHelp =
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 refused, 4 missing capability.";

}  // namespace jiffy
