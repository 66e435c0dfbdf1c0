// All public headers of jiffy::runtime.
#pragma once

#include <jiffy/blocking.h>
#include <jiffy/condition_variable.h>
#include <jiffy/counters.h>
#include <jiffy/event_fd.h>
#include <jiffy/fiber.h>
#include <jiffy/histogram.h>
#include <jiffy/irqfd.h>
#include <jiffy/mutex.h>
#include <jiffy/offload.h>
#include <jiffy/options.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>
#include <jiffy/sim.h>
#include <jiffy/status.h>
#include <jiffy/time.h>
#include <jiffy/timer.h>
#include <jiffy/topology.h>
#include <jiffy/trace.h>
#include <jiffy/wait_queue.h>
#include <jiffy/work.h>
