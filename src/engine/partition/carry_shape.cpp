// Rules of the ops that only rearrange elements: views, permutations, slices, concatenations. The divided dimension
// moves to another place, and its unit grows or shrinks where dimensions are merged or split.
#include <algorithm>

#include "engine/graph/node_access.hpp"
#include "engine/partition/carry.hpp"

namespace accord::engine {
namespace {

// SymbolicInt has no product, so this multiplies by parsing text.
std::optional<SymbolicInt> product_of(SymbolicShape::const_iterator first, SymbolicShape::const_iterator last) {
  std::string text = "1";
  for (auto size = first; size != last; ++size) text += "*(" + size->to_string() + ")";
  Result<SymbolicInt> product = SymbolicInt::parse(text);
  if (!product.ok()) return std::nullopt;
  return *product;
}

// Returns a * factor / b if that is a constant whole number.
std::optional<std::int64_t> quotient(const SymbolicInt& a, std::int64_t factor, const SymbolicInt& b) {
  if (a == b) return factor;
  if (a.terms().size() != 1 || b.terms().size() != 1) return std::nullopt;
  const SymbolicInt::Term& over = a.terms().front();
  const SymbolicInt::Term& under = b.terms().front();
  if (over.symbols != under.symbols || under.factor == 0) return std::nullopt;
  const std::int64_t product = over.factor * factor;
  if (product % under.factor != 0) return std::nullopt;
  return product / under.factor;
}

const ValueId* single_input(const ShardQuery& query) {
  const Argument* argument = find_argument(query.node, "self");
  if (argument == nullptr) argument = find_argument(query.node, "input");
  if (argument == nullptr) return nullptr;
  const auto* ref = std::get_if<ValueRef>(argument);
  return ref == nullptr ? nullptr : &ref->id;
}

// Runs `rule` on the shard of "self", the only tensor of the ops in this file that may be sharded.
template <typename Rule>
Result<ShardResult> carry_self(const ShardQuery& query, const Rule& rule) {
  const ValueId* self = single_input(query);
  if (self == nullptr) return query.unsupported("it has neither \"self\" nor \"input\"");
  const OptionalShard& shard = query.shard(*self);
  if (!shard) return query.unsupported("only its first input may be sharded");
  Result<OptionalShard> carried = rule(*self, *shard);
  if (!carried.ok()) return carried.status();
  return ShardResult{*carried, {}};
}

Result<OptionalShard> require_other_dim(const ShardQuery& query, ValueId self, const Shard& shard,
                                        std::string_view what) {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t given, integer_argument(query.node, "dim", 0));
  ACCORD_ASSIGN_OR_RETURN(const int dim, dimension_index(query.node, given, query.dims(self)));
  if (dim == shard.dim) return query.unsupported(what);
  return OptionalShard(shard);
}

}  // namespace

// Let P elements precede the sharded dimension d and S follow it, all in row-major order. A unit is then a run of
// (unit * S) elements within each of P blocks. It is also a unit of the output's dimension e if the same number of
// elements precede e and the number of elements that follow e divides the run.
OptionalShard shard_of_view(const Shard& shard, const SymbolicShape& from, const SymbolicShape& to) {
  const auto cut = from.begin() + shard.dim;
  const auto before = product_of(from.begin(), cut);
  const auto after = product_of(cut + 1, from.end());
  if (!before || !after) return std::nullopt;
  for (auto candidate = to.begin(); candidate != to.end(); ++candidate) {
    if (*candidate == SymbolicInt(1) && *cut != SymbolicInt(1)) continue;
    const auto before_candidate = product_of(to.begin(), candidate);
    const auto after_candidate = product_of(candidate + 1, to.end());
    if (!before_candidate || !after_candidate || !(*before_candidate == *before)) continue;
    const auto unit = quotient(*after, shard.unit, *after_candidate);
    if (!unit || *unit < 1 || !candidate->is_constant()) return std::nullopt;
    if ((candidate->constant() + *unit - 1) / *unit != shard.units) return std::nullopt;
    Shard moved = shard.in_dim(static_cast<int>(candidate - to.begin()));
    moved.unit = *unit;
    return moved;
  }
  return std::nullopt;
}

Result<ShardResult> carry_view(const ShardQuery& query) {
  return carry_self(query, [&](ValueId self, const Shard& shard) -> Result<OptionalShard> {
    const SymbolicShape& to = query.value(query.node.outputs.front()).shape;
    const OptionalShard moved = shard_of_view(shard, query.value(self).shape, to);
    if (!moved) {
      return query.unsupported("its input has " + shard_text(shard) +
                               ", and no dimension of its output is cut the same way");
    }
    return moved;
  });
}

Result<ShardResult> carry_permute(const ShardQuery& query) {
  return carry_self(query, [&](ValueId self, const Shard& shard) -> Result<OptionalShard> {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> order, integers_argument(query.node, "dims"));
    for (std::size_t i = 0; i < order.size(); ++i) {
      ACCORD_ASSIGN_OR_RETURN(const int dim, dimension_index(query.node, order[i], query.dims(self)));
      if (dim == shard.dim) return OptionalShard(shard.in_dim(static_cast<int>(i)));
    }
    return query.unsupported("its order leaves the sharded dimension out");
  });
}

Result<ShardResult> carry_unsqueeze(const ShardQuery& query) {
  return carry_self(query, [&](ValueId self, const Shard& shard) -> Result<OptionalShard> {
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t given, integer_argument(query.node, "dim"));
    ACCORD_ASSIGN_OR_RETURN(const int dim, dimension_index(query.node, given, query.dims(self) + 1));
    return OptionalShard(shard.in_dim(shard.dim >= dim ? shard.dim + 1 : shard.dim));
  });
}

Result<ShardResult> carry_squeeze(const ShardQuery& query) {
  return carry_self(query, [&](ValueId self, const Shard& shard) -> Result<OptionalShard> {
    const SymbolicShape& shape = query.value(self).shape;
    if (shape[static_cast<std::size_t>(shard.dim)] == SymbolicInt(1)) {
      return query.unsupported("it would remove the sharded dimension");
    }
    // Squeezing is a view: the removed dimensions have one element.
    return shard_of_view(shard, shape, query.value(query.node.outputs.front()).shape);
  });
}

Result<ShardResult> carry_expand(const ShardQuery& query) {
  return carry_self(query, [&](ValueId self, const Shard& shard) -> Result<OptionalShard> {
    return OptionalShard(shard.in_dim(shard.dim + query.dims(query.node.outputs.front()) - query.dims(self)));
  });
}

Result<ShardResult> carry_slice(const ShardQuery& query) {
  return carry_self(query, [&](ValueId self, const Shard& shard) -> Result<OptionalShard> {
    // A slice of everything carries any shard.
    if (query.value(self).shape == query.value(query.node.outputs.front()).shape) return OptionalShard(shard);
    return require_other_dim(query, self, shard, "it slices the sharded dimension");
  });
}

Result<ShardResult> carry_select(const ShardQuery& query) {
  return carry_self(query, [&](ValueId self, const Shard& shard) -> Result<OptionalShard> {
    ACCORD_ASSIGN_OR_RETURN(OptionalShard kept,
                            require_other_dim(query, self, shard, "it selects from the sharded dimension"));
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t given, integer_argument(query.node, "dim"));
    ACCORD_ASSIGN_OR_RETURN(const int dim, dimension_index(query.node, given, query.dims(self)));
    if (kept && kept->dim > dim) kept->dim -= 1;
    return kept;
  });
}

Result<ShardResult> carry_concatenate(const ShardQuery& query) {
  OptionalShard common;
  bool first = true;
  Status differ;
  for_each_input(query.node, [&](ValueId id) {
    const OptionalShard& shard = query.shard(id);
    if (first) common = shard;
    if (shard != common) differ = query.unsupported("its inputs are sharded differently");
    first = false;
  });
  ACCORD_RETURN_IF_ERROR(differ);
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t given, integer_argument(query.node, "dim", 0));
  const int dims = query.dims(query.node.outputs.front());
  ACCORD_ASSIGN_OR_RETURN(const int dim, dimension_index(query.node, given, dims));
  if (common && common->dim == dim) return query.unsupported("it concatenates along the sharded dimension");
  return ShardResult{common, {}};
}

}  // namespace accord::engine
