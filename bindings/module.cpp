// accord._core: the C++ classes for Python. The package `accord` gives them their public names.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <string>

#include "bindings/communicator/communicator.hpp"
#include "bindings/communicator/device_window.hpp"
#include "bindings/communicator/window.hpp"
#include "bindings/communicator/work.hpp"
#include "bindings/elastic/elastic.hpp"
#include "bindings/engine/engine.hpp"
#include "bindings/engine/memory_samples.hpp"
#include "bindings/engine/package.hpp"
#include "bindings/engine/packing.hpp"
#include "bindings/engine/sharding.hpp"
#include "bindings/expert/expert.hpp"
#include "bindings/information.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/process.hpp"
#include "bindings/interpreter/status.hpp"
#include "bindings/language/model.hpp"
#include "bindings/language/sampling.hpp"
#include "bindings/language/text_stream.hpp"
#include "bindings/language/tokenizer.hpp"
#include "bindings/mesh/mesh.hpp"
#include "bindings/plan.hpp"
#include "bindings/store/store.hpp"
#include "comm/internal.hpp"

namespace {

/// Suggests the library of PyPI's package nvidia-nccl, which torch also uses, at the first place on sys.path that has
/// it.
void suggest_nccl() {
  const nanobind::object path = nanobind::module_::import_("sys").attr("path");
  for (const nanobind::handle entry : path) {
    std::string folder;
    if (!nanobind::try_cast(entry, folder)) continue;
    const std::string file = folder + "/nvidia/nccl/lib/libnccl.so.2";
    if (::access(file.c_str(), R_OK) != 0) continue;
    accord::comm::suggest_nccl(file);
    return;
  }
}

}  // namespace

NB_MODULE(_core, module) {
  // Objects that are alive when the interpreter ends are not a defect: everything behind them ends with the process.
  nanobind::set_leak_warnings(false);
  suggest_nccl();
  accord::python::watch_process();
  accord::python::watch_interrupts();
  accord::python::bind_errors(module);
  accord::python::bind_stores(module);
  accord::python::bind_work(module);
  accord::python::bind_window(module);
  accord::python::bind_device_window(module);
  accord::python::bind_communicator(module);
  accord::python::bind_elastic(module);
  accord::python::bind_experts(module);
  accord::python::bind_mesh(module);
  accord::python::bind_mesh_groups(module);
  accord::python::bind_engine(module);
  accord::python::bind_text_stream(module);
  accord::python::bind_language_model(module);
  accord::python::bind_package(module);
  accord::python::bind_sharding(module);
  accord::python::bind_packing(module);
  accord::python::bind_memory_samples(module);
  accord::python::bind_plans(module);
  accord::python::bind_tokenizer(module);
  accord::python::bind_information(module);
  accord::python::bind_sampling(module);
}
