// What a map tells: numbers as lists, slots and sources in arrays that the caller gives.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "expert.hpp"
#include "gil.hpp"
#include "stream.hpp"

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

/// int32 elements of an array that has to have so many.
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

/// int64 numbers on a GPU, as CuPy and torch read them where they are.
nb::object cuda_array_of(const MapHandle& self, const ConstBuffer& numbers) {
  if (numbers.data == nullptr) raise({StatusCode::kUnsupported, "this expert handle is not on a GPU"});
  nb::dict fields;
  fields["shape"] = nb::make_tuple(numbers.count);
  fields["typestr"] = "<i8";
  fields["data"] =
      nb::make_tuple(reinterpret_cast<std::uintptr_t>(numbers.data), false);  // torch refuses read-only arrays
  fields["version"] = 3;
  nb::object array = nb::module_::import_("types").attr("SimpleNamespace")();
  array.attr("__cuda_array_interface__") = fields;
  array.attr("handle") = nb::find(self);  // whose memory it is
  return array;
}

}  // namespace

void bind_expert_handle(nb::module_& module) {
  nb::class_<MapHandle>(module, "ExpertHandle",
                        R"(A routing map: where each choice of each token goes. Made by ExpertGroup.handle().

One for each layer and microbatch in flight; it may be prepared anew once its last backward is done. What it tells is WrongState
until it is prepared.)")
      .def_prop_ro(
          "prepared", [](const MapHandle& self) { return self.handle.prepared(); }, "Whether it may be used.")
      .def_prop_ro(
          "generation", [](const MapHandle& self) { return self.handle.generation(); },
          R"(Counts its maps: one more where prepare made another than the last one, so equal ids keep the number.

On a GPU, where the host does not know the ids, one more for each prepare. Alike on all ranks.)")
      .def_prop_ro(
          "top_k", [](const MapHandle& self) { return self.handle.top_k(); }, "Choices of each token.")
      .def_prop_ro(
          "alignment", [](const MapHandle& self) { return self.handle.alignment(); },
          "Each expert's rows are padded to a multiple of it.")
      .def_prop_ro(
          "tokens", [](const MapHandle& self) { return self.prepared().tokens(); }, "Tokens of this rank.")
      .def_prop_ro(
          "fingerprint", [](const MapHandle& self) { return self.fetched().fingerprint(); },
          R"(Equal for equal maps of a handle, whatever it was in between, and alike on all ranks.

A backward finds by it that the map is that of its forward, also where activation recompute has prepared it again.)")
      .def_prop_ro(
          "counts", [](const MapHandle& self) { return list_of(self.fetched().counts()); },
          "Rows of each of this rank's experts, padding included; their slots follow each other.")
      .def_prop_ro(
          "rows", [](const MapHandle& self) { return list_of(self.fetched().rows()); }, "The same without padding.")
      .def_prop_ro(
          "recv_rows", [](const MapHandle& self) { return self.fetched().recv_rows(); },
          "Rows that dispatch writes on this rank: the sum of counts.")
      .def_prop_ro(
          "total_rows", [](const MapHandle& self) { return self.fetched().total_rows(); },
          "What recv_rows would be without dropping.")
      .def_prop_ro("ranks", &ranks_of, nb::sig("def ranks(self) -> list[dict[str, int]]"),
                   "Of each rank: tokens, out_of_range, duplicates (ids that count as no choice), dropped, recv_rows, "
                   "total_rows.")
      .def_prop_ro("dropped", &dropped_of,
                   "Every choice that overflow dropped, of all ranks: (rank, token, k), ascending.")
      .def_prop_ro("traffic", &traffic_of, "traffic[a][b]: rows that rank a sends to rank b.")
      .def_prop_ro("loads", &loads_of, "Choices of each expert over all ranks, before any was dropped.")
      .def("slots", &slots, nb::arg("ranks"), nb::arg("slots"),
           nb::sig("def slots(self, ranks: " ACCORD_ROWS_SIG ", slots: " ACCORD_ROWS_SIG ") -> None"),
           "Fills two arrays of int32 [tokens, top_k]: the rank, and the slot there, of each choice; -1 where there is "
           "none.")
      .def("sources", &sources, nb::arg("sources"), nb::sig("def sources(self, sources: " ACCORD_ROWS_SIG ") -> None"),
           "Fills an array of int32 [recv_rows, 3]: the (rank, token, k) whose row each slot holds; -1 for padding.")
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
          R"(On a GPU: waits for what is in `stream`, and copies the map, also one that a graph has prepared.

Raises ResourceExhausted if it overflows and overflow is "fail". What else is asked of a handle does this for the stream of the last prepare, once.)")
      .def_prop_ro(
          "device_counts", [](const MapHandle& self) { return cuda_array_of(self, self.handle.on_device().counts); },
          nb::sig("def device_counts(self) -> object"),
          "On a GPU: `counts` there, an array by __cuda_array_interface__ that may be read in a stream behind "
          "prepare().")
      .def_prop_ro(
          "device_numbers", [](const MapHandle& self) { return cuda_array_of(self, self.handle.on_device().numbers); },
          nb::sig("def device_numbers(self) -> object"),
          R"(On a GPU: five int64, as device_counts. recv_rows; 1 if a rank would get more rows than its capacity; 1 if nothing is moved for that;
ids of this rank that are out of range or duplicates; rows for which the last call's array of slots had no room.)")
      .def_prop_ro(
          "device_fingerprint",
          [](const MapHandle& self) { return cuda_array_of(self, self.handle.on_device().fingerprint); },
          nb::sig("def device_fingerprint(self) -> object"),
          "On a GPU: one int64 with the bits of `fingerprint`, as device_counts.");
}

}  // namespace accord::python
