#include "work/work_state.h"
namespace jiffy {
Status create_work_state(RuntimeState&) { return Status(); }
void destroy_work_state(RuntimeState&) {}
int64_t live_workers(const RuntimeState&) { return 0; }
}  // namespace jiffy
