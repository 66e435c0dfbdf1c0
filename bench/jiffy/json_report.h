// The results as JSON: one object with a schema's name, the environment and the figures. Each key
// that holds a number, or an object that holds numbers, names their unit.
#pragma once

#include <string>
#include <vector>

#include "doctor.h"
#include "hog.h"
#include "kworker.h"
#include "kworker_sim.h"
#include "pingpong.h"
#include "sim_scenario.h"

namespace jiffy {

std::string kworker_json(const KworkerReport& report);
std::string kworker_sim_json(const KworkerSimReport& report);
std::string pingpong_json(const PingpongReport& report);
std::string sim_json(const SimReport& report);
std::string hog_json(const HogReport& report);
std::string doctor_json(const DoctorOptions& options, const std::vector<Check>& checks);

}  // namespace jiffy
