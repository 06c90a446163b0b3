// TensorInfo and LoadReport: values, which are copied on access.
#include "bindings/engine/descriptions.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "accord/engine.hpp"

namespace accord::python {
namespace {

/// Numbers as int, symbols as str.
nb::tuple shape_of(const TensorInfo& info) {
  nb::list shape;
  for (const std::string& extent : info.shape) {
    const bool number =
        !extent.empty() && std::all_of(extent.begin(), extent.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (number) {
      shape.append(std::stoll(extent));
    } else {
      shape.append(extent);
    }
  }
  return nb::tuple(shape);
}

std::string repr_info(const TensorInfo& info) {
  return "TensorInfo(name='" + info.name + "', dtype='" + std::string(to_string(info.dtype)) +
         "', shape=" + nb::cast<std::string>(nb::str(shape_of(info))) + ")";
}

std::string repr_report(const LoadReport& report) {
  return "LoadReport(manifest_bytes=" + std::to_string(report.manifest_bytes) +
         ", weight_bytes_read=" + std::to_string(report.weight_bytes_read) +
         ", shard_bytes=" + std::to_string(report.shard_bytes) +
         ", replicated_bytes=" + std::to_string(report.replicated_bytes) +
         ", seconds=" + std::to_string(report.seconds) + ")";
}

}  // namespace

void bind_engine_descriptions(nb::module_& module) {
  nb::class_<TensorInfo>(module, "TensorInfo", "Description of one input or output of an engine.")
      .def_ro("name", &TensorInfo::name)
      .def_prop_ro("dtype", [](const TensorInfo& self) { return std::string(to_string(self.dtype)); })
      .def_prop_ro("shape", &shape_of, nb::sig("def shape(self) -> tuple[int | str, ...]"),
                   "Each dimension: a number, or the name of a symbol.")
      .def("__repr__", &repr_info);
  nb::class_<LoadReport>(module, "LoadReport", "What loading cost. Bytes are counted by the reader, not estimated.")
      .def_ro("manifest_bytes", &LoadReport::manifest_bytes,
              "Bytes read from the manifest, the graph and the headers of weight files.")
      .def_ro("weight_bytes_read", &LoadReport::weight_bytes_read, "Bytes read from weight files.")
      .def_ro("shard_bytes", &LoadReport::shard_bytes, "Bytes of this rank's part of the sharded tensors.")
      .def_ro("replicated_bytes", &LoadReport::replicated_bytes, "Bytes of the tensors that every rank holds.")
      .def_ro("seconds", &LoadReport::seconds, "Seconds that loading took.")
      .def("__repr__", &repr_report);
}

}  // namespace accord::python
