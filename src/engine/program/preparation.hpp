#pragma once
// The interface of an op's prepare function: it reads the op's arguments for one set of shapes and adds outputs and
// steps.

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.hpp"
#include "engine/program/program.hpp"
#include "engine/program/step_table.hpp"
#include "engine/program/tensor.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/elementwise/row_loop.hpp"
#include "kernels/linear/rows.hpp"

namespace accord::engine {

class ProgramBuilder;
class Preparation;

/// A tensor that can be read as rows: the tensor itself, or a copy. rows_of() fails with kUnsupported unless it has
/// real numbers.
struct RowTensor {
  Tensor tensor;
  Rows rows;
};
Result<RowTensor> rows_of(Preparation& op, const Tensor& tensor);

/// One node that is being prepared. The op's function reads arguments, creates or aliases every output that is used,
/// and adds steps. If the op sees 16-bit floats as float32, tensors arrive converted, outputs are declared as
/// float32, and the results are rounded afterwards.
/// Has a method for each kind of argument and result, so that an op reads as a list of what it takes and makes.
class Preparation {
 public:
  Preparation(ProgramBuilder& builder, const Node& node, const StepTable& steps, kernels::NarrowFloats narrow)
      : builder_(builder), node_(node), steps_(steps), narrow_(narrow) {}

  const Node& node() const { return node_; }
  int threads() const;
  /// Returns the arithmetic that multiplies rows of `dtype` with packed weights.
  kernels::Arithmetic arithmetic(DType dtype, const kernels::PackedFormat& weights) const;

  // Arguments, with symbols replaced by numbers. They fail with kCorrupt if an argument without a default is missing
  // or an argument has the wrong kind.
  bool has(std::string_view name) const;
  bool is_tensor(std::string_view name) const;
  Result<Tensor> tensor(std::string_view name);
  /// Returns the tensor, first rounded to the dtype that the graph declares for the first output.
  Result<Tensor> tensor_as_output(std::string_view name);
  Result<std::optional<Tensor>> maybe_tensor(std::string_view name);
  /// An entry is nullopt where the list has None.
  Result<std::vector<std::optional<Tensor>>> tensors(std::string_view name);
  Result<std::int64_t> integer(std::string_view name, std::optional<std::int64_t> default_value = {}) const;
  Result<Sizes> integers(std::string_view name) const;
  Result<double> real(std::string_view name, std::optional<double> default_value = {}) const;
  Result<bool> flag(std::string_view name, bool default_value) const;
  Result<std::string> text(std::string_view name, std::string default_value) const;
  /// Returns the position of the text argument in `names`; 0 if it is left out.
  Result<int> choice(std::string_view name, std::initializer_list<std::string_view> names) const;
  Result<kernels::Scalar> scalar(std::string_view name, std::optional<kernels::Scalar> default_value = {}) const;
  /// Returns float32, int64 or bool, as PyTorch sees a number.
  DType scalar_dtype(std::string_view name) const;
  /// Returns dimensions counted from the front; none for an empty list.
  Result<std::vector<int>> dimensions(std::string_view name, int dims) const;
  Result<int> dimension(std::string_view name, int dims, std::optional<std::int64_t> default_value = {}) const;
  /// Returns the packed form of a weight; nullptr if the tensor is not a parameter.
  const kernels::PackedMatrix* packed_linear(std::string_view name) const;
  /// Returns the same for each tensor of a list.
  std::vector<const kernels::PackedMatrix*> packed_linears(std::string_view name) const;
  const kernels::PackedMatrix* packed_product(std::string_view name) const;
  const PackedStack* packed_experts(std::string_view name) const;
  const PackedStack* packed_convolution(std::string_view name) const;
  /// Returns the index of the group that the argument names; nullopt if this rank is alone in it.
  Result<std::optional<int>> group(std::string_view name) const;
  /// Returns the size of a group, given its index, if its sums are sent in codes; else 0.
  int ranks_with_codes(int group) const;

  // The graph's declarations about an output.
  std::size_t outputs() const { return node_.outputs.size(); }
  bool output_used(std::size_t output) const;
  DType declared_dtype(std::size_t output = 0) const;
  Result<Sizes> declared_sizes(std::size_t output = 0) const;

  // Outputs and memory.
  /// Creates a contiguous tensor of the output's declared dtype.
  Result<Tensor> make(std::size_t output, const Sizes& sizes);
  /// Does the same, but reuses the memory of one of `candidates` that has the same layout and is not needed
  /// afterwards.
  Result<Tensor> make_in_place(std::size_t output, const Sizes& sizes, std::initializer_list<Tensor> candidates);
  /// Creates a tensor, with its channels last if one of `inputs` has them last.
  Result<Tensor> make_like(std::size_t output, const Sizes& sizes, std::span<const Tensor> inputs);
  /// Creates a tensor whose memory has the dimensions in `order`.
  Result<Tensor> make_ordered(std::size_t output, const Sizes& sizes, std::span<const int> order);
  /// Makes the output a view of an existing tensor.
  void alias(std::size_t output, Tensor tensor);
  /// Returns the tensor that an output was set to.
  const Tensor& made(std::size_t output) const;
  /// Returns memory for this node alone.
  Result<Tensor> scratch(DType dtype, const Sizes& sizes);
  /// Returns a number as a tensor without dimensions, computed now.
  Result<Tensor> constant(kernels::Scalar value, DType dtype);
  /// Returns a constant of bytes that are known now, row-major.
  Tensor constant(DType dtype, const Sizes& sizes, std::span<const std::byte> bytes);
  /// Returns `tensor`, or a copy of it that is row-major without gaps.
  Result<Tensor> contiguous(const Tensor& tensor);
  /// Returns `tensor`, or a copy of it in `dtype`. A small weight or constant is converted now.
  Result<Tensor> converted(const Tensor& tensor, DType dtype);

  /// Declares that this node computes `rows` rows of the run's sequences. Fails with kUnsupported if another node
  /// computes a different number.
  Status set_batch_rows(std::int64_t rows);

  /// Adds the steps that compute `call`, in the way of the program's device. Fails with kUnsupported, naming the
  /// device, if that has none.
  template <typename Call>
  Status add(const Call& call) {
    const auto make = steps_.find<Call>();
    return make == nullptr ? no_steps() : make(*this, call);
  }
  /// Returns the steps of `call` as one, for a step of the op itself to run, instead of adding them.
  template <typename Call>
  Result<Step> step_of(const Call& call) {
    std::vector<Step> others = exchange_steps({});
    const Status made = add(call);
    std::vector<Step> steps = exchange_steps(std::move(others));
    if (!made.ok()) return made;
    return joined(std::move(steps));
  }
  /// Adds a step, for the functions of a StepTable.
  void step(Step run);
  /// The node runs in every run, even if it depends on no input: it is a collective, or reads the run's sequences.
  /// With canonical ranks, so do products: whether the CPU could compute one beforehand depends on this rank's share of
  /// the weights, and its bits differ from a GPU's.
  void run_always();
  Device device() const;
  /// As in LoadOptions.
  std::optional<DType> activation_dtype() const;
  /// Returns whether the engine has canonical ranks. Then no bit may depend on the number of ranks.
  bool is_canonical() const;
  /// Returns whether surely no other rank computes the same product with `weight`: it is a weight of which all other
  /// ranks have other parts, or there are no other ranks. Otherwise all ranks must get the same bits, since they act on
  /// them alike. With several groups of ranks, those that differ in one of them may have equal parts.
  bool is_own_product(const Tensor& weight) const;
  /// Returns whether the device multiplies `rows` rows with weights that follow each other in memory at once.
  bool multiplies_together(std::int64_t rows) const;

  /// Fails with kUnsupported unless `tensor` has one of `dtypes`.
  Status require(const Tensor& tensor, std::initializer_list<DType> dtypes) const;
  /// Errors about this node that name its place in the source model.
  Status unsupported(std::string_view why) const;
  Status corrupt(std::string_view why) const;

  /// Makes this node see 16-bit floats as float32 from here on.
  void widen() { narrow_ = kernels::NarrowFloats::kAsFloat32; }
  /// Called after the function: converts outputs that were computed in float32 to the dtype that the graph declares.
  Status round_outputs();

 private:
  Status no_steps() const;
  /// Replaces the steps that this node has added, and returns them.
  std::vector<Step> exchange_steps(std::vector<Step> steps);
  static Step joined(std::vector<Step> steps);
  DType op_dtype(DType dtype) const;
  Result<Tensor> as_op_dtype(const Tensor& tensor);

  ProgramBuilder& builder_;
  const Node& node_;
  const StepTable& steps_;
  kernels::NarrowFloats narrow_;
};

}  // namespace accord::engine
