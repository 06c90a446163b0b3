#pragma once
// accord.GenerationQueue.

#include <nanobind/nanobind.h>

#include "accord/generation_queue.hpp"
#include "bindings/interpreter/process.hpp"

namespace accord::python {

struct QueueHandle {
  ProcessBound<GenerationQueue> queue;

  GenerationQueue& use() { return queue.use("this queue"); }
};

void bind_generation_queue(nanobind::module_& module);

}  // namespace accord::python
