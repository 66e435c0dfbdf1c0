#include "micro/harness.h"
namespace jiffy::micro { std::vector<Row> work_rows() { return {}; } }
