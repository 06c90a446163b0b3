#pragma once
// What an op's prepare function sees and does: its arguments for one set of shapes in, outputs and steps out.

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.hpp"
#include "engine/runtime/program.hpp"
#include "engine/runtime/tensor.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/linear/rows.hpp"
#include "kernels/row_loop.hpp"

namespace accord::engine {

class ProgramBuilder;
class Preparation;

/// A tensor that can be read as rows: itself, or a copy. kUnsupported unless it is made of real numbers.
struct RowTensor {
  Tensor tensor;
  Rows rows;
};
Result<RowTensor> rows_of(Preparation& op, const Tensor& tensor);

/// One node being prepared. Its function reads arguments, makes or aliases every output that is used, and adds steps. If it
/// sees 16-bit floats as float32, tensors come converted, outputs are declared as float32, and what it makes of them is
/// rounded afterwards.
class Preparation {
 public:
  Preparation(ProgramBuilder& builder, const Node& node, kernels::NarrowFloats narrow)
      : builder_(builder), node_(node), narrow_(narrow) {}

  const Node& node() const { return node_; }
  int threads() const;
  /// As what rows of `dtype` are multiplied with packed weights.
  kernels::Arithmetic arithmetic(DType dtype, const kernels::PackedFormat& weights) const;

  // Arguments; symbols are put in. A missing one without a default, or one of the wrong kind, is kCorrupt.
  bool has(std::string_view name) const;
  bool is_tensor(std::string_view name) const;
  Result<Tensor> tensor(std::string_view name) const;
  /// The same, rounded first to the dtype that the graph says of the first output.
  Result<Tensor> tensor_as_output(std::string_view name) const;
  Result<std::optional<Tensor>> maybe_tensor(std::string_view name) const;
  /// nullopt where the list has None.
  Result<std::vector<std::optional<Tensor>>> tensors(std::string_view name) const;
  Result<std::int64_t> integer(std::string_view name, std::optional<std::int64_t> otherwise = {}) const;
  Result<Sizes> integers(std::string_view name) const;
  Result<double> real(std::string_view name, std::optional<double> otherwise = {}) const;
  Result<bool> flag(std::string_view name, bool otherwise) const;
  Result<std::string> text(std::string_view name, std::string otherwise) const;
  /// Which of `names` the text argument is; the first one if it is left out.
  Result<int> choice(std::string_view name, std::initializer_list<std::string_view> names) const;
  Result<kernels::Scalar> scalar(std::string_view name, std::optional<kernels::Scalar> otherwise = {}) const;
  /// float32, int64 or bool, as PyTorch sees a number.
  DType scalar_dtype(std::string_view name) const;
  /// Dimensions counted from the front; for an empty list none.
  Result<std::vector<int>> dimensions(std::string_view name, int dims) const;
  Result<int> dimension(std::string_view name, int dims, std::optional<std::int64_t> otherwise = {}) const;
  /// The packed form of a weight; nullptr if the tensor is no parameter.
  const kernels::PackedMatrix* packed_linear(std::string_view name) const;
  /// Those of a list; empty unless all are parameters.
  std::vector<kernels::PackedMatrix> packed_linears(std::string_view name) const;
  const kernels::PackedMatrix* packed_product(std::string_view name) const;
  const PackedStack* packed_experts(std::string_view name) const;
  const PackedStack* packed_convolution(std::string_view name) const;
  /// The index of the group that the argument names; nullopt if this rank is alone in it.
  Result<std::optional<int>> group(std::string_view name) const;
  /// The ranks of a group by its index if its sums travel in codes, else 0.
  int ranks_with_codes(int group) const;

  // What the graph says of an output.
  std::size_t outputs() const { return node_.outputs.size(); }
  bool output_used(std::size_t output) const;
  DType declared_dtype(std::size_t output = 0) const;
  Result<Sizes> declared_sizes(std::size_t output = 0) const;

  // Outputs and memory.
  /// A new contiguous tensor of the output's declared dtype.
  Result<Tensor> make(std::size_t output, const Sizes& sizes);
  /// The same, in the place of one of `candidates` if that is of the same layout and nobody needs it any more.
  Result<Tensor> make_over(std::size_t output, const Sizes& sizes, std::initializer_list<Tensor> candidates);
  /// A new tensor, with its channels last if one of `inputs` is so.
  Result<Tensor> make_like(std::size_t output, const Sizes& sizes, std::span<const Tensor> inputs);
  /// A new tensor whose memory has the dimensions in `order`.
  Result<Tensor> make_ordered(std::size_t output, const Sizes& sizes, std::span<const int> order);
  /// The output is a view of what is there.
  void alias(std::size_t output, Tensor tensor);
  /// The tensor that an output was set to.
  const Tensor& made(std::size_t output) const;
  /// Memory for this node alone.
  Result<Tensor> scratch(DType dtype, const Sizes& sizes);
  /// A number as a tensor without dimensions, computed now.
  Result<Tensor> constant(kernels::Scalar value, DType dtype);
  /// Bytes that are known now, row-major.
  Tensor constant(DType dtype, const Sizes& sizes, std::span<const std::byte> bytes);
  /// `tensor`, or a copy of it, row-major without gaps.
  Result<Tensor> contiguous(const Tensor& tensor);
  /// `tensor`, or a copy of it in `dtype`: one made now if it is a small weight or constant.
  Result<Tensor> converted(const Tensor& tensor, DType dtype) const;

  /// This node computes `rows` rows of the run's sequences; kUnsupported if another one computes another number of them.
  Status take_batch_rows(std::int64_t rows);

  /// `on_device`: the same by kernels of a device. Without it, programs on devices can only have the node if its outputs are constants.
  void step(Step run, const MakeStep& on_device = {});
  /// As step(), for a step that must run each time (a collective).
  void step_always(Step run, const MakeStep& on_device = {});
  /// Whether the program is one on a device.
  bool is_on_device() const;
  Device device() const;
  /// As of LoadOptions.
  std::optional<DType> activation_dtype() const;
  /// Whether the engine has canonical ranks: then no bit may depend on how many there are.
  bool is_canonical() const;

  /// kUnsupported unless `tensor` has one of `dtypes`.
  Status require(const Tensor& tensor, std::initializer_list<DType> dtypes) const;
  /// An error about this node, with its place in the source model.
  Status unsupported(std::string_view why) const;
  Status corrupt(std::string_view why) const;

  /// From here on this node sees 16-bit floats as float32.
  void widen() { narrow_ = kernels::NarrowFloats::kAsFloat32; }
  /// Once the function is done: brings outputs that were made in float32 to the dtype that the graph says.
  Status round_outputs();

 private:
  DType seen(DType dtype) const;
  Result<Tensor> as_seen(const Tensor& tensor) const;

  ProgramBuilder& builder_;
  const Node& node_;
  kernels::NarrowFloats narrow_;
};

}  // namespace accord::engine
