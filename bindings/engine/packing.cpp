// The exporter passes one matrix, or one unit of it, at a time, together with the memory for the result.
#include "bindings/engine/packing.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "bindings/arguments/array.hpp"
#include "bindings/interpreter/status.hpp"
#include "kernels/linear/pack.hpp"

namespace accord::python {
namespace {

using kernels::PackedFormat;

using Table = std::optional<std::array<float, 16>>;

PackedFormat format_of(const std::string& type, int group, const std::string& scales, bool minima, const Table& table) {
  using kernels::WeightType;
  PackedFormat format;
  if (type == "bfloat16") format.type = WeightType::kBFloat16;
  if (type == "float16") format.type = WeightType::kFloat16;
  if (type == "int8") format.type = WeightType::kInt8;
  if (type == "int6") format.type = WeightType::kInt6;
  if (type == "int5") format.type = WeightType::kInt5;
  if (type == "int4") format.type = WeightType::kInt4;
  if (type == "table4") format.type = WeightType::kTable4;
  if (type == "float8_e4m3fn") format.type = WeightType::kFloat8;
  format.group = group;
  format.minimum = minima ? kernels::Minimum::kPerGroup : kernels::Minimum::kNone;
  format.scale_type = scales == "float32" ? DType::kFloat32 : scales == "int8" ? DType::kInt8 : DType::kFloat16;
  if (table.has_value() != (type == "table4")) throw nb::value_error("table: expected one exactly for table4");
  format.table = table.value_or(format.table);
  raise_if_error(kernels::check(format));
  return format;
}

std::size_t packed_bytes(std::int64_t out, std::int64_t in, const std::string& type, int group,
                         const std::string& scales, bool minima, const Table& table) {
  return kernels::packed_bytes(format_of(type, group, scales, minima, table), out, in);
}

void check_view(const ArrayView& view, DType dtype, std::size_t count, const char* name) {
  if (view.buffer().dtype == dtype && view.buffer().count == count) return;
  throw nb::value_error(
      (std::string(name) + ": expected " + std::to_string(count) + " elements of " + std::string(to_string(dtype)))
          .c_str());
}

std::pair<double, double> pack_matrix(nb::handle matrix, nb::handle packed, const std::string& type, int group,
                                      const std::string& scales, bool minima, const Table& table, bool transposed,
                                      nb::handle row_scales) {
  const PackedFormat format = format_of(type, group, scales, minima, table);
  const ArrayView from(matrix, "matrix", Access::kRead);
  const ArrayView to(packed, "packed", Access::kWrite);
  const auto shape = from.shape();
  if (shape.size() != 2) throw nb::value_error("matrix: expected two dimensions");
  kernels::WeightSource source;
  source.data = from.buffer().data;
  source.dtype = from.buffer().dtype;
  source.out = shape[transposed ? 1 : 0];
  source.in = shape[transposed ? 0 : 1];
  source.out_stride = transposed ? 1 : shape[1];
  source.in_stride = transposed ? shape[1] : 1;
  std::optional<ArrayView> of_outputs;
  if (!row_scales.is_none()) {
    of_outputs.emplace(row_scales, "row_scales", Access::kRead);
    check_view(*of_outputs, DType::kFloat32, static_cast<std::size_t>(source.out * format.scales_of(source.in)),
               "row_scales");
    source.scales = static_cast<const float*>(of_outputs->buffer().data);
  }
  std::optional<Result<kernels::PackError>> error;
  {
    const nb::gil_scoped_release released;
    error = kernels::pack(source, format, {static_cast<std::byte*>(to.buffer().data), to.buffer().bytes()});
  }
  const kernels::PackError made = value_or_raise(std::move(*error));
  return {made.largest, made.relative};
}

// The numbers of an optional argument, which must be `count` elements of float32 if it is given.
class OptionalFloats {
 public:
  OptionalFloats(nb::handle given, std::size_t count, const char* name) {
    if (given.is_none()) return;
    view_.emplace(given, name, Access::kRead);
    check_view(*view_, DType::kFloat32, count, name);
  }
  const float* data() const { return view_ ? static_cast<const float*>(view_->buffer().data) : nullptr; }

 private:
  std::optional<ArrayView> view_;
};

void pack_quantized(nb::handle codes, nb::handle scales, nb::handle minima, nb::handle packed, const std::string& type,
                    int group, const std::string& scale_type, nb::handle super_scales, nb::handle super_minima,
                    const Table& table) {
  if (group < 1 && type != "float8_e4m3fn") throw nb::value_error("group: expected at least 1");
  const PackedFormat format = format_of(type, group, scale_type, !minima.is_none(), table);
  const ArrayView from(codes, "codes", Access::kRead);
  const ArrayView scale(scales, "scales", Access::kRead);
  const ArrayView to(packed, "packed", Access::kWrite);
  const auto shape = from.shape();
  if (shape.size() != 2) throw nb::value_error("codes: expected two dimensions");
  kernels::QuantizedSource source;
  source.out = shape[0];
  source.in = shape[1];
  const auto groups = static_cast<std::size_t>(source.out * format.scales_of(source.in));
  const auto super_groups = static_cast<std::size_t>(source.out * format.super_groups_of(source.in));
  check_view(from, DType::kUInt8, static_cast<std::size_t>(source.out * source.in), "codes");
  check_view(scale, DType::kFloat32, groups, "scales");
  const OptionalFloats minimum(minima, groups, "minima"), super_scale(super_scales, super_groups, "super_scales"),
      super_minimum(super_minima, super_groups, "super_minima");
  source.codes = static_cast<const std::uint8_t*>(from.buffer().data);
  source.scales = static_cast<const float*>(scale.buffer().data);
  source.minima = minimum.data();
  source.super_scales = super_scale.data();
  source.super_minima = super_minimum.data();
  raise_if_error(kernels::pack(source, format, {static_cast<std::byte*>(to.buffer().data), to.buffer().bytes()}));
}

}  // namespace

void bind_packing(nb::module_& module) {
  module.def("packed_bytes", &packed_bytes, nb::arg("out"), nb::arg("in_"), nb::kw_only(), nb::arg("type"),
             nb::arg("group"), nb::arg("scales"), nb::arg("minima"), nb::arg("table").none(),
             "Returns the size in bytes of a packed weight [out, in].");
  module.def("pack_matrix", &pack_matrix, nb::arg("matrix"), nb::arg("packed"), nb::kw_only(), nb::arg("type"),
             nb::arg("group"), nb::arg("scales"), nb::arg("minima"), nb::arg("table").none(), nb::arg("transposed"),
             nb::arg("row_scales").none(),
             R"(Packs a matrix [out, in] ([in, out] if `transposed`) into `packed`.

table: for table4, the 16 numbers that codes stand for; else None.
row_scales: for float8_e4m3fn, float32 [out] or [out, groups]; else None.

Returns the largest error of an element, and sqrt(sum (packed - given)^2 / sum given^2).)");
  module.def("pack_quantized", &pack_quantized, nb::arg("codes"), nb::arg("scales"), nb::arg("minima").none(),
             nb::arg("packed"), nb::kw_only(), nb::arg("type"), nb::arg("group"), nb::arg("scale_type"),
             nb::arg("super_scales").none(), nb::arg("super_minima").none(), nb::arg("table").none(),
             R"(Packs a matrix [out, in] that is already quantized, unchanged.

codes: as defined by the packed format; for float8_e4m3fn, the bytes of the elements.
scales, minima (or None): float32 [out, groups], representable in `scale_type`; for float8_e4m3fn without groups,
scales [out].
super_scales, super_minima (or None): float32 [out, super-groups], representable in float16; for scales of type
int8.
table: for table4, the 16 numbers that codes stand for; else None.)");
}

}  // namespace accord::python
