// The reduction loops, for any element type and op. They process a group of two vectors of elements at a time: load
// that group of every source, combine the groups in the canonical tree, round, store. For few sources the tree is
// unrolled where speed matters most (Unrolled).
// For more sources the loop works like a binary counter. It pushes source i on a stack. For every trailing one bit of
// i, the two topmost entries, which are trees of equal size, are combined into one. At the end the rest is folded
// from the top, smaller trees into the larger ones below them. The result is exactly the tree that splits at the
// largest power of two below n.
// The tail of a message runs through the same code with vectors of one lane.
//
// A Type defines how elements are stored in memory and what they are computed in: Tag, kElementBytes, kElements<D>
// per group, LoadGroup and StoreGroup, and Load and Store for single elements. An Op combines vectors.
//
// Included once per Highway target; the guard below follows Highway's rule for such files.

#if defined(ACCORD_KERNELS_REDUCE_LOOPS_SIMD_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCORD_KERNELS_REDUCE_LOOPS_SIMD_HPP_
#undef ACCORD_KERNELS_REDUCE_LOOPS_SIMD_HPP_
#else
#define ACCORD_KERNELS_REDUCE_LOOPS_SIMD_HPP_
#endif

#include <hwy/highway.h>

#include <atomic>
#include <complex>
#include <cstdint>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Factor = std::complex<double>;

// Elements in two vectors, in whatever order their type loads and stores them. The explicit default constructor is
// needed because the implicit one would be compiled for the Arm baseline, where GCC cannot inline the constructors of
// Highway's vectors into it.
template <class D>
struct Group {
  HWY_INLINE Group() {}
  HWY_INLINE Group(hn::Vec<D> a, hn::Vec<D> b) : first(a), second(b) {}
  hn::Vec<D> first;
  hn::Vec<D> second;
};

// Base for a Type whose group is two consecutive vectors, unless the Type overrides this.
template <class Type, std::size_t kBytes>
struct InOrder {
  static constexpr std::size_t kElementBytes = kBytes;
  static constexpr bool kIsPair = false;  // an element fills one lane
  template <class D>
  static constexpr std::size_t kElements = 2 * hn::MaxLanes(D());
  template <class D>
  static HWY_INLINE Group<D> LoadGroup(D d, const std::byte* from) {
    return {Type::Load(d, from), Type::Load(d, from + hn::Lanes(d) * kBytes)};
  }
  template <class D>
  static HWY_INLINE void StoreGroup(D d, Group<D> group, std::byte* to) {
    Type::Store(d, group.first, to);
    Type::Store(d, group.second, to + hn::Lanes(d) * kBytes);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Scale(D d, hn::Vec<D> v, Factor factor) {
    return hn::Mul(v, hn::Set(d, static_cast<hn::TFromD<D>>(factor.real())));
  }
};

template <class D>
inline constexpr bool kIsFloat = std::is_floating_point_v<hn::TFromD<D>>;

// Hooks of an Op besides combining; they do nothing by default.
struct Plain {
  static constexpr bool kScales = false;   // sources are multiplied by their factors first
  static constexpr bool kDivides = false;  // the result is divided by the number of sources
};

struct Sum : Plain {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D d, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (kIsFloat<D>) {
      return hn::Add(a, b);
    } else {
      const hn::RebindToUnsigned<D> du;  // unsigned addition wraps by definition
      return hn::BitCast(d, hn::Add(hn::BitCast(du, a), hn::BitCast(du, b)));
    }
  }
};

struct Average : Sum {
  static constexpr bool kDivides = true;
};

struct ScaledSum : Sum {
  static constexpr bool kScales = true;
};

struct Product : Plain {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Mul(a, b);
  }
};

// Equal floats can differ in bits only as -0 and +0: Or gives the lower of the two, And the higher.
struct Min : Plain {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (kIsFloat<D>) {
      const auto least = hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), hn::Min(a, b));
      return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, least));
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max : Plain {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (kIsFloat<D>) {
      const auto greatest = hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), hn::Max(a, b));
      return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, greatest));
    } else {
      return hn::Max(a, b);
    }
  }
};

// The step of the loop below: a group, or a single element for the tail.
template <class Type, class D>
struct ByGroup {
  using Value = Group<D>;
  static constexpr std::size_t kElements = Type::template kElements<D>;
  template <class Op>
  static HWY_INLINE Value Load(const void* source, std::size_t i, [[maybe_unused]] const Factor* factor) {
    const Value value = Type::LoadGroup(D(), static_cast<const std::byte*>(source) + i * Type::kElementBytes);
    if constexpr (!Op::kScales) {
      return value;
    } else if constexpr (Type::kIsPair) {
      return Type::Scale(D(), value, *factor);
    } else {
      return {Type::Scale(D(), value.first, *factor), Type::Scale(D(), value.second, *factor)};
    }
  }
  template <class Op>
  static HWY_INLINE Value Finish(Value value, [[maybe_unused]] int n) {
    if constexpr (!Op::kDivides) {
      return value;
    } else {
      const auto divisor = hn::Set(D(), static_cast<hn::TFromD<D>>(n));
      return {hn::Div(value.first, divisor), hn::Div(value.second, divisor)};
    }
  }
  static HWY_INLINE void Store(Value v, void* to, std::size_t i) {
    Type::StoreGroup(D(), v, static_cast<std::byte*>(to) + i * Type::kElementBytes);
  }
  template <class Op>
  static HWY_INLINE Value Combine(Value a, Value b) {
    if constexpr (Type::kIsPair && !std::is_base_of_v<Sum, Op>) {
      return Op::Combine(D(), a, b);
    } else {
      return {Op::Combine(D(), a.first, b.first), Op::Combine(D(), a.second, b.second)};
    }
  }
};

template <class Type, class D>
struct ByElement {
  using Value = hn::Vec<D>;
  static constexpr std::size_t kElements = 1;
  template <class Op>
  static HWY_INLINE Value Load(const void* source, std::size_t i, [[maybe_unused]] const Factor* factor) {
    const Value value = Type::Load(D(), static_cast<const std::byte*>(source) + i * Type::kElementBytes);
    if constexpr (Op::kScales) {
      return Type::Scale(D(), value, *factor);
    } else {
      return value;
    }
  }
  template <class Op>
  static HWY_INLINE Value Finish(Value value, [[maybe_unused]] int n) {
    if constexpr (Op::kDivides) {
      return hn::Div(value, hn::Set(D(), static_cast<hn::TFromD<D>>(n)));
    } else {
      return value;
    }
  }
  static HWY_INLINE void Store(Value v, void* to, std::size_t i) {
    Type::Store(D(), v, static_cast<std::byte*>(to) + i * Type::kElementBytes);
  }
  template <class Op>
  static HWY_INLINE Value Combine(Value a, Value b) {
    return Op::Combine(D(), a, b);
  }
};

// The sources of a reduction.
struct Sources {
  const void* const* at;
  const Factor* factors;
  int n;

  template <class Step, class Op>
  HWY_INLINE typename Step::Value Load(int source, std::size_t i) const {
    return Step::template Load<Op>(at[source], i, Op::kScales ? factors + source : nullptr);
  }
};

// Computes the tree over the values at element `i`, for any number of sources.
template <class Step, class Op>
HWY_INLINE typename Step::Value TreeOfMany(const Sources& sources, std::size_t i) {
  typename Step::Value stack[32];  // one entry for each bit of n
  std::size_t height = 0;
  for (int source = 0; source < sources.n; ++source) {
    auto tree = sources.Load<Step, Op>(source, i);
    for (unsigned carry = static_cast<unsigned>(source); (carry & 1U) != 0; carry >>= 1) {
      tree = Step::template Combine<Op>(stack[--height], tree);
    }
    stack[height++] = tree;
  }
  auto tree = stack[--height];
  while (height > 0) {
    tree = Step::template Combine<Op>(stack[--height], tree);
#if HWY_TARGET == HWY_SCALAR
    std::atomic_signal_fence(std::memory_order_seq_cst);  // GCC 12 vectorizes this loop wrongly for pairs of int32
#endif
  }
  return tree;
}

// The same for exactly kSources sources; 0 means any number.
template <class Step, class Op, int kSources>
HWY_INLINE typename Step::Value Tree(const Sources& sources, std::size_t i) {
  const auto load = [&](int source) HWY_ATTR { return sources.Load<Step, Op>(source, i); };
  if constexpr (kSources == 0) {
    return TreeOfMany<Step, Op>(sources, i);
  } else {
    const auto left = Step::template Combine<Op>(load(0), load(1));
    if constexpr (kSources == 2) {
      return left;
    } else if constexpr (kSources == 3) {
      return Step::template Combine<Op>(left, load(2));
    } else {
      return Step::template Combine<Op>(left, Step::template Combine<Op>(load(2), load(3)));
    }
  }
}

template <class Type, class Op, int kSources>
void Run(void* destination, void* mirror, const void* const* at, const Factor* factors, int n, std::size_t count) {
  const Sources sources{at, factors, n};
  using Tag = typename Type::Tag;
  using One = hn::CappedTag<hn::TFromD<Tag>, 1>;
  using Groups = ByGroup<Type, Tag>;
  using Elements = std::conditional_t<Type::kIsPair, ByGroup<Type, One>, ByElement<Type, One>>;
  const auto store = [&](auto step, auto v, std::size_t i) HWY_ATTR {
    v = decltype(step)::template Finish<Op>(v, n);
    decltype(step)::Store(v, destination, i);
    if (mirror != nullptr) decltype(step)::Store(v, mirror, i);
  };
  std::size_t i = 0;
  if constexpr (kSources != 0) {
    for (; i + 2 * Groups::kElements <= count; i += 2 * Groups::kElements) {
      const auto first = Tree<Groups, Op, kSources>(sources, i);
      const auto second = Tree<Groups, Op, kSources>(sources, i + Groups::kElements);
      store(Groups(), first, i);
      store(Groups(), second, i + Groups::kElements);
    }
  }
  for (; i + Groups::kElements <= count; i += Groups::kElements)
    store(Groups(), Tree<Groups, Op, kSources>(sources, i), i);
  for (; i < count; ++i) store(Elements(), Tree<Elements, Op, kSources>(sources, i), i);
}

// Which trees are unrolled: those over two sources and, on request, those over three and four. Targets older than
// AVX2 have fewer, because each unrolled tree adds compile time.
enum class Unrolled { kPairs, kToFour };
inline constexpr int kMaxUnrolled = HWY_TARGET == HWY_SCALAR ? 0 : HWY_TARGET == HWY_SSE4 ? 2 : 4;

template <class Type, class Op, Unrolled kUnrolled = Unrolled::kPairs>
void Reduce(void* destination, void* mirror, const void* const* at, const Factor* factors, int n, std::size_t count) {
  if constexpr (!Op::kScales) {
    if (n == 1) {
      const std::size_t bytes = count * Type::kElementBytes;
      if (bytes == 0) return;
      if (destination != at[0]) std::memcpy(destination, at[0], bytes);
      if (mirror != nullptr && mirror != at[0]) std::memcpy(mirror, at[0], bytes);
      return;
    }
    if constexpr (kMaxUnrolled >= 2) {
      if (n == 2) return Run<Type, Op, 2>(destination, mirror, at, factors, n, count);
    }
    if constexpr (kMaxUnrolled >= 4 && kUnrolled == Unrolled::kToFour) {
      if (n == 3) return Run<Type, Op, 3>(destination, mirror, at, factors, n, count);
      if (n == 4) return Run<Type, Op, 4>(destination, mirror, at, factors, n, count);
    }
  }
  return Run<Type, Op, 0>(destination, mirror, at, factors, n, count);
}

// Selects the kernel for an op on floats. kUnrolled applies to the ops whose speed matters most.
template <class Type, Unrolled kUnrolled>
ReduceKernel SelectOfFloats(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return Reduce<Type, Sum, kUnrolled>;
    case ReduceOp::kProduct: return Reduce<Type, Product>;
    case ReduceOp::kMin: return Reduce<Type, Min, kUnrolled>;
    case ReduceOp::kMax: return Reduce<Type, Max, kUnrolled>;
    case ReduceOp::kAvg: return Reduce<Type, Average, kUnrolled>;
    case ReduceOp::kPremulSum: return Reduce<Type, ScaledSum>;
    default: return nullptr;
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
