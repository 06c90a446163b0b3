// The inner loops are compiled for each Highway target, and for two targets once more with instructions that Highway
// 1.0.3 lacks: AVX-512 with AVX512_BF16 (products of bfloat16 pairs, fp32 sums) and VNNI (products of four 8-bit
// integers), and AVX2 with AVX-VNNI. Those variants are compiled with the additional instructions enabled and are
// selected if the processor has them.

#include <atomic>

#include "kernels/linear/panel_kernels.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/panel.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/linear/forms_simd.hpp"
#include "kernels/linear/sources_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace plain {
#include "kernels/linear/tile.inc"
}  // namespace plain

PanelKernels MakePanelKernels() {
  using namespace plain;
  PanelKernels kernels;
  AddAllTileKernels<FloatForm, kMaxTileRows>(kernels, Form::kFloat32);
  AddKernels<FloatForm, BFloat16ToFloats, false>(kernels, Form::kFloat32, WeightType::kBFloat16);
  AddKernels<FloatForm, Float16ToFloats, false>(kernels, Form::kFloat32, WeightType::kFloat16);
  AddKernels<FloatForm, Int8ToFloats, true>(kernels, Form::kFloat32, WeightType::kInt8);
  AddKernels<FloatForm, WideCodes<2, Int8ToFloats>, true>(kernels, Form::kFloat32, WeightType::kInt6);
  AddKernels<FloatForm, WideCodes<1, Int8ToFloats>, true>(kernels, Form::kFloat32, WeightType::kInt5);
  AddKernels<FloatForm, Int4ToFloats, true>(kernels, Form::kFloat32, WeightType::kInt4);
  AddKernels<FloatForm, TableToFloats, true>(kernels, Form::kFloat32, WeightType::kTable4);
  AddTileKernels<FloatPairsForm, true, kMaxPackedRows>(kernels, Form::kBFloat16, WeightType::kTable4);
  AddKernels<FloatPairsForm, TableToPairs, true>(kernels, Form::kBFloat16, WeightType::kTable4);
  AddCodeTileKernels<HalvesForm, kMaxPackedRows>(kernels, Form::kInt16);
  AddKernels<HalvesForm, CodesToHalves<8>, true>(kernels, Form::kInt16, WeightType::kInt8);
  AddKernels<HalvesForm, WideCodes<2, CodesToHalves<8>>, true>(kernels, Form::kInt16, WeightType::kInt6);
  AddKernels<HalvesForm, WideCodes<1, CodesToHalves<8>>, true>(kernels, Form::kInt16, WeightType::kInt5);
  AddKernels<HalvesForm, CodesToHalves<4>, true>(kernels, Form::kInt16, WeightType::kInt4);
  AddKernels<HalvesForm, TableCodes<CodesToHalves<8>>, true>(kernels, Form::kInt16, WeightType::kTable4);
  AddCodeTileKernels<ShortCodesForm, kMaxPackedRows>(kernels, Form::kInt8);
  AddTileKernels<IntegerForm, true, kMaxPackedRows>(kernels, Form::kInt8, WeightType::kInt8);  // 8 bits are not short
  AddTileKernels<IntegerForm, true, kMaxPackedRows>(kernels, Form::kInt8, WeightType::kTable4);
  AddByteKernels<ShortCodesForm>(kernels);
  AddKernels<IntegerForm, TableCodes<TileSource>, true>(kernels, Form::kInt8, WeightType::kTable4);
  return kernels;
}

const PanelKernels* PlainKernels() {
  static const PanelKernels kernels = MakePanelKernels();
  return &kernels;
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#include "kernels/linear/dot.inc"

#if HWY_ONCE
namespace accord::kernels {

namespace {
std::atomic<DotInstructions>& dot_instructions() {
  static std::atomic<DotInstructions> use{DotInstructions::kIfPresent};
  return use;
}
}  // namespace

HWY_EXPORT(PlainKernels);
HWY_EXPORT(DotKernels);

const PanelKernels& panel_kernels() {
  if (dot_instructions().load(std::memory_order_relaxed) == DotInstructions::kNever) {
    return *HWY_DYNAMIC_DISPATCH(PlainKernels)();
  }
  return *HWY_DYNAMIC_DISPATCH(DotKernels)();
}

void use_dot_instructions(DotInstructions use) { dot_instructions().store(use); }

}  // namespace accord::kernels
#endif
