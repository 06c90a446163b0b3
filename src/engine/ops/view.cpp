// Ops that show the same elements in another way. They compute strides and add no step. A view that strides cannot
// express is a copy.
#include <algorithm>

#include "engine/ops/op_registry.hpp"
#include "engine/program/calls.hpp"
#include "kernels/index.hpp"

namespace accord::engine {
namespace {

Tensor with_layout(Tensor tensor, std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  tensor.layout = kernels::strided_layout(sizes, strides);
  return tensor;
}

Sizes strides_of(const Tensor& tensor) {
  return Sizes(tensor.layout.strides.begin(), tensor.layout.strides.begin() + tensor.dims());
}

// Fills in a size of -1, for `count` elements.
Result<Sizes> complete_sizes(const Preparation& op, Sizes sizes, std::int64_t count) {
  std::int64_t known = 1;
  std::int64_t* open = nullptr;
  bool fits = sizes.size() <= static_cast<std::size_t>(kernels::kMaxDims);
  for (std::int64_t& size : sizes) {
    if (size == -1 && open == nullptr) {
      open = &size;
    } else if (size < 0) {
      return op.corrupt("its sizes are negative");
    } else {
      fits = fits && !__builtin_mul_overflow(known, size, &known);
    }
  }
  // A quotient times its divisor is at most the count.
  if (fits && open != nullptr) {
    *open = known == 0 ? 0 : count / known;
    known *= *open;
  }
  if (!fits || known != count) {
    return op.corrupt("it views " + std::to_string(count) + " elements as " + sizes_text(sizes));
  }
  return sizes;
}

Status add_view(Preparation& op, const Tensor& self, const Sizes& sizes) {
  if (const auto layout = viewed_layout(self.layout, sizes)) {
    Tensor view = self;
    view.layout = *layout;
    op.alias(0, view);
    return Status();
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor whole, op.make(0, sizes));
  Tensor like_self = whole;
  like_self.layout = kernels::contiguous_layout(self.sizes());
  return op.add(ConvertCall{self, like_self});
}

Status prepare_view(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(Sizes given, op.integers("size"));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, complete_sizes(op, std::move(given), self.count()));
  return add_view(op, self, sizes);
}

Status prepare_permute(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<int> order, op.dimensions("dims", self.dims()));
  if (static_cast<int>(order.size()) != self.dims()) return op.corrupt("its order does not name every dimension");
  self.layout = kernels::permuted_layout(self.layout, order);
  op.alias(0, self);
  return Status();
}

Status prepare_unsqueeze(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims() + 1));
  if (self.dims() == kernels::kMaxDims) return op.unsupported("it has more dimensions than the kernels support");
  Sizes sizes = self.sizes();
  Sizes strides = strides_of(self);
  const std::int64_t stride = dim < self.dims() ? self.size(dim) * self.stride(dim) : 1;
  sizes.insert(sizes.begin() + dim, 1);
  strides.insert(strides.begin() + dim, stride);
  op.alias(0, with_layout(self, sizes, strides));
  return Status();
}

Status prepare_squeeze(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<int> dims, op.dimensions("dim", self.dims()));
  Sizes sizes;
  Sizes strides;
  for (int dim = 0; dim < self.dims(); ++dim) {
    const bool named = std::find(dims.begin(), dims.end(), dim) != dims.end();
    if (named && self.size(dim) == 1) continue;
    sizes.push_back(self.size(dim));
    strides.push_back(self.stride(dim));
  }
  op.alias(0, with_layout(self, sizes, strides));
  return Status();
}

Status prepare_expand(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(Sizes sizes, op.integers("size"));
  const auto own_dims = static_cast<std::size_t>(self.dims());
  const std::size_t more = sizes.size() - own_dims;
  if (sizes.size() < own_dims || sizes.size() > static_cast<std::size_t>(kernels::kMaxDims)) {
    return op.corrupt("it expands " + sizes_text(self.sizes()) + " to " + sizes_text(sizes));
  }
  Sizes strides(sizes.size(), 0);
  for (int dim = 0; dim < self.dims(); ++dim) {
    std::int64_t& size = sizes[static_cast<std::size_t>(dim) + more];
    if (size == -1) size = self.size(dim);
    if (self.size(dim) != 1 && self.size(dim) != size) {
      return op.corrupt("it expands " + sizes_text(self.sizes()) + " to " + sizes_text(sizes));
    }
    strides[static_cast<std::size_t>(dim) + more] = self.size(dim) == 1 && size != 1 ? 0 : self.stride(dim);
  }
  for (const std::int64_t size : sizes) {
    if (size < 0) return op.corrupt("it expands to a negative size");
  }
  op.alias(0, with_layout(self, sizes, strides));
  return Status();
}

// Returns `count` indices of dimension `dim` from `first` on, `step` apart. REQUIRES: the last one is in the
// dimension.
Tensor sliced(Tensor tensor, int dim, std::int64_t first, std::int64_t count, std::int64_t step) {
  const auto index = static_cast<std::size_t>(dim);
  tensor.offset += first * tensor.layout.strides[index] * static_cast<std::int64_t>(size_of(tensor.dtype));
  tensor.layout.sizes[index] = count;
  tensor.layout.strides[index] *= step;
  return tensor;
}

Status prepare_slice(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  if (self.dims() == 0) return op.corrupt("it slices a scalar");
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims(), 0));
  const std::int64_t size = self.size(dim);
  ACCORD_ASSIGN_OR_RETURN(std::int64_t first, op.integer("start", 0));
  ACCORD_ASSIGN_OR_RETURN(std::int64_t last, op.integer("end", size));
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t step, op.integer("step", 1));
  if (step < 1) return op.corrupt("its step is below 1");
  if (first < 0) first += size;
  if (last < 0) last += size;
  first = std::clamp<std::int64_t>(first, 0, size);
  last = std::clamp<std::int64_t>(last, first, size);
  // Any step past the end gives the same slice. A huge one would overflow the stride.
  const std::int64_t near_step = std::min(step, std::max<std::int64_t>(last - first, 1));
  op.alias(0, sliced(self, dim, first, (last - first + near_step - 1) / near_step, near_step));
  return Status();
}

Tensor without_dim(const Tensor& tensor, int dim) {
  Sizes sizes = tensor.sizes();
  Sizes strides = strides_of(tensor);
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return with_layout(tensor, sizes, strides);
}

Status prepare_select(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  if (self.dims() == 0) return op.corrupt("it selects from a scalar");
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims()));
  ACCORD_ASSIGN_OR_RETURN(std::int64_t index, op.integer("index"));
  if (index < 0) index += self.size(dim);
  if (index < 0 || index >= self.size(dim)) return op.corrupt("its index is outside the tensor");
  op.alias(0, without_dim(sliced(self, dim, index, 1, 1), dim));
  return Status();
}

Status prepare_split(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  if (self.dims() == 0) return op.corrupt("it splits a scalar");
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims(), 0));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, op.integers("split_sizes"));
  std::int64_t first = 0;
  for (std::size_t i = 0; i < sizes.size() && i < op.outputs(); ++i) {
    if (sizes[i] < 0 || sizes[i] > self.size(dim) - first) return op.corrupt("its pieces are longer than the tensor");
    op.alias(i, sliced(self, dim, first, sizes[i], 1));
    first += sizes[i];
  }
  return Status();
}

constexpr OpEntry kViewOps[] = {
    {"aten.view.default", prepare_view},           {"aten.permute.default", prepare_permute},
    {"aten.unsqueeze.default", prepare_unsqueeze}, {"aten.squeeze.dims", prepare_squeeze},
    {"aten.expand.default", prepare_expand},       {"aten.slice.Tensor", prepare_slice},
    {"aten.select.int", prepare_select},           {"aten.split_with_sizes.default", prepare_split},
};

}  // namespace

std::span<const OpEntry> view_ops() { return kViewOps; }

}  // namespace accord::engine
