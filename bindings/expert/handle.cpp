// The contents of a map: numbers as lists, slots and sources in arrays that the caller passes.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings/arguments/stream.hpp"
#include "bindings/expert/expert.hpp"
#include "bindings/interpreter/gil.hpp"

namespace accord::python {
namespace {

std::vector<std::int64_t> list_of(std::span<const std::int64_t> values) { return {values.begin(), values.end()}; }

nb::list ranks_of(const MapHandle& self) {
  nb::list ranks;
  for (const ExpertRankCounts& counts : self.fetched().ranks()) {
    nb::dict fields;
    fields["tokens"] = counts.tokens;
    fields["out_of_range"] = counts.out_of_range;
    fields["duplicates"] = counts.duplicates;
    fields["dropped"] = counts.dropped;
    fields["recv_rows"] = counts.recv_rows;
    fields["total_rows"] = counts.total_rows;
    ranks.append(fields);
  }
  return ranks;
}

std::vector<std::tuple<int, int, int>> dropped_of(const MapHandle& self) {
  std::vector<std::tuple<int, int, int>> dropped;
  for (const ExpertChoice& choice : self.fetched().dropped()) dropped.emplace_back(choice.rank, choice.token, choice.k);
  return dropped;
}

/// Returns the int32 elements of an array, which must have exactly `count` of them.
std::span<std::int32_t> int32_of(const Buffer& buffer, std::string_view name, std::size_t count) {
  if (buffer.dtype != DType::kInt32 || buffer.count != count)
    raise_invalid(std::string(name) + " has " + std::to_string(buffer.count) + " x " +
                  std::string(to_string(buffer.dtype)) + ", it has to have " + std::to_string(count) + " x int32");
  return {static_cast<std::int32_t*>(buffer.data), count};
}

void slots(const MapHandle& self, nb::handle ranks, nb::handle places) {
  const ExpertHandle& handle = self.fetched();
  const auto count = static_cast<std::size_t>(handle.tokens() * handle.top_k());
  Arrays arrays;
  const std::span<std::int32_t> to = int32_of(arrays.write(ranks, "ranks", handle.top_k()), "ranks", count);
  handle.slots(to, int32_of(arrays.write(places, "slots", handle.top_k()), "slots", count));
}

void sources(const MapHandle& self, nb::handle array) {
  const ExpertHandle& handle = self.fetched();
  Arrays arrays;
  static_assert(sizeof(ExpertChoice) == 3 * sizeof(std::int32_t));
  const auto rows = static_cast<std::size_t>(handle.recv_rows());
  std::vector<ExpertChoice> choices(rows);
  handle.sources(choices);
  const std::span<std::int32_t> to = int32_of(arrays.write(array, "sources", 3), "sources", 3 * rows);
  for (std::size_t slot = 0; slot < rows; ++slot) {
    to[3 * slot] = choices[slot].rank;
    to[3 * slot + 1] = choices[slot].token;
    to[3 * slot + 2] = choices[slot].k;
  }
}

std::vector<std::vector<std::int64_t>> traffic_of(const MapHandle& self) {
  const ExpertHandle& handle = self.fetched();
  const std::size_t size = handle.ranks().size();
  std::vector<std::int64_t> flat(size * size);
  handle.traffic(flat);
  std::vector<std::vector<std::int64_t>> rows;
  for (std::size_t rank = 0; rank < size; ++rank)
    rows.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(rank * size),
                      flat.begin() + static_cast<std::ptrdiff_t>((rank + 1) * size));
  return rows;
}

std::vector<std::int64_t> loads_of(const MapHandle& self) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(self.fetched().experts()));
  self.fetched().loads(loads);
  return loads;
}

/// Exports int64 numbers on a GPU in the form that CuPy and torch read in place.
nb::object cuda_array_of(const MapHandle& self, const ConstBuffer& numbers) {
  if (numbers.data == nullptr) raise({StatusCode::kUnsupported, "this expert handle is not on a GPU"});
  nb::dict fields;
  fields["shape"] = nb::make_tuple(numbers.count);
  fields["typestr"] = "<i8";
  fields["data"] =
      nb::make_tuple(reinterpret_cast<std::uintptr_t>(numbers.data), false);  // torch rejects read-only arrays
  fields["version"] = 3;
  nb::object array = nb::module_::import_("types").attr("SimpleNamespace")();
  array.attr("__cuda_array_interface__") = fields;
  array.attr("handle") = nb::find(self);  // owns the memory
  return array;
}

}  // namespace

void bind_expert_handle(nb::module_& module) {
  nb::class_<MapHandle>(module, "ExpertHandle",
                        R"(A routing map: the destination of each choice of each token.

Created by ExpertGroup.handle(). Use one for each layer and microbatch in flight. It may be prepared again once its
last backward is done. Reading the map raises WrongState until it is prepared.)")
      .def_prop_ro(
          "prepared", [](const MapHandle& self) { return self.handle.prepared(); }, "Whether the map may be used.")
      .def_prop_ro(
          "generation", [](const MapHandle& self) { return self.handle.generation(); },
          R"(Number of the current map, the same on all ranks.

Increased by one when prepare() creates a map that differs from the last one, so a map that is prepared again for
equal ids keeps its number. On a GPU, where the host does not know the ids, increased by one for each prepare().)")
      .def_prop_ro(
          "top_k", [](const MapHandle& self) { return self.handle.top_k(); }, "Maximum number of choices of a token.")
      .def_prop_ro(
          "alignment", [](const MapHandle& self) { return self.handle.alignment(); },
          "Each expert's rows are padded to a multiple of it.")
      .def_prop_ro(
          "tokens", [](const MapHandle& self) { return self.prepared().tokens(); }, "Tokens of this rank.")
      .def_prop_ro(
          "fingerprint", [](const MapHandle& self) { return self.fetched().fingerprint(); },
          R"(Equal for equal maps of a handle, whatever it was prepared for in between, and the same on all ranks.

A backward uses it to check that the map is that of its forward, even if activation recompute has prepared the map
again.)")
      .def_prop_ro(
          "counts", [](const MapHandle& self) { return list_of(self.fetched().counts()); },
          "Rows of each of this rank's experts, padding included; their slots follow each other in this order.")
      .def_prop_ro(
          "rows", [](const MapHandle& self) { return list_of(self.fetched().rows()); },
          "The same as counts, without padding.")
      .def_prop_ro(
          "recv_rows", [](const MapHandle& self) { return self.fetched().recv_rows(); },
          "Rows that dispatch writes on this rank: the sum of counts.")
      .def_prop_ro(
          "total_rows", [](const MapHandle& self) { return self.fetched().total_rows(); },
          "recv_rows without dropping.")
      .def_prop_ro("ranks", &ranks_of, nb::sig("def ranks(self) -> list[dict[str, int]]"),
                   "For each rank: tokens, out_of_range and duplicates (ids that count as no choice), dropped, "
                   "recv_rows, total_rows.")
      .def_prop_ro("dropped", &dropped_of,
                   "Every choice of any rank that was dropped because of overflow: (rank, token, k), ascending.")
      .def_prop_ro("traffic", &traffic_of, "traffic[a][b]: rows that rank a sends to rank b.")
      .def_prop_ro("loads", &loads_of, "Choices of each expert over all ranks, before any were dropped.")
      .def("slots", &slots, nb::arg("ranks"), nb::arg("slots"),
           nb::sig("def slots(self, ranks: " ACCORD_ROWS_SIG ", slots: " ACCORD_ROWS_SIG ") -> None"),
           "Fills two int32 arrays [tokens, top_k] with the rank and the slot of each choice; -1 where there is none.")
      .def("sources", &sources, nb::arg("sources"), nb::sig("def sources(self, sources: " ACCORD_ROWS_SIG ") -> None"),
           "Fills an int32 array [recv_rows, 3] with the choice (rank, token, k) whose row is in each slot; -1 for "
           "padding.")
      .def(
          "fetch",
          [](const MapHandle& self, nb::handle stream) {
            const Stream from = stream_argument(stream);
            Status status;
            {
              const WithoutGil without_gil;
              status = self.handle.fetch(from);
            }
            raise_if_error(status);
          },
          nb::arg("stream") = nb::none(), nb::sig("def fetch(self, " ACCORD_STREAM_SIG ") -> None"),
          R"(On a GPU: waits for the work in `stream`, then copies the map, including a map that a graph has prepared.

Raises ResourceExhausted if the map overflows and overflow is "fail". The properties and methods that read the map do
this once, for the stream of the last prepare().)")
      .def_prop_ro(
          "device_counts", [](const MapHandle& self) { return cuda_array_of(self, self.handle.on_device().counts); },
          nb::sig("def device_counts(self) -> object"),
          "On a GPU: `counts` in GPU memory, an array with __cuda_array_interface__ that may be read in a stream "
          "after prepare().")
      .def_prop_ro(
          "device_numbers", [](const MapHandle& self) { return cuda_array_of(self, self.handle.on_device().numbers); },
          nb::sig("def device_numbers(self) -> object"),
          R"(On a GPU: five int64 numbers in an array like device_counts.

They are recv_rows; 1 if a rank would get more rows than its capacity; 1 if nothing is moved for that reason; ids of
this rank that are out of range or duplicates; rows that did not fit into the last call's array of slots.)")
      .def_prop_ro(
          "device_fingerprint",
          [](const MapHandle& self) { return cuda_array_of(self, self.handle.on_device().fingerprint); },
          nb::sig("def device_fingerprint(self) -> object"),
          "On a GPU: one int64 with the bits of `fingerprint`, in an array like device_counts.");
}

}  // namespace accord::python
