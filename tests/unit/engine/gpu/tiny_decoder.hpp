#pragma once
// A language model like an exported one, by default of two layers: rotary embedding, grouped heads, attention over the
// paged cache, a gated layer, and the logits of chosen rows. Everything is divided by key heads.

#include "unit/engine/package/small_packages.hpp"

namespace accord::engine {

class TinyDecoder {
 public:
  static constexpr std::int64_t kHeads = 8, kKeyHeads = 2, kDim = 16, kHidden = 16, kInner = 24, kVocabulary = 23;
  static constexpr std::int64_t kPositions = 64;

  explicit TinyDecoder(DType dtype = DType::kFloat32, int layers = 2) : dtype_(dtype) {
    writer_.symbol("tokens", 1, 64);
    writer_.symbol("rows", 1, 8);
    const ValueId ids = writer_.input("ids", shape_of({"tokens"}), DType::kInt64);
    const ValueId positions = writer_.input("positions", shape_of({"tokens"}), DType::kInt64);
    const ValueId rows = writer_.input("rows", shape_of({"rows"}), DType::kInt64);
    weight("table", kVocabulary, kHidden);
    const ValueId cos = angles("cos", positions), sin = angles("sin", positions);
    ValueId x = node("aten.embedding.default", {{"weight", of(ids_["table"])}, {"indices", of(ids)}}, {"tokens", "16"});
    for (int layer = 0; layer < layers; ++layer)
      x = add_layer(x, "layer" + std::to_string(layer) + ".", layer, cos, sin);
    const ValueId last = node("aten.index_select.default",
                              {{"self", of(norm(x, "last"))}, {"dim", number(0)}, {"index", of(rows)}}, {"rows", "16"});
    weight("head", kVocabulary, kHidden);
    writer_.output(linear(last, "head", {"rows", "23"}));
  }

  void write(const std::filesystem::path& path) const { write_package(path, writer_.graph(), weights_, shardings_); }
  const Graph& graph() const { return writer_.graph(); }
  const Weights& weights() const { return weights_; }

 private:
  using Sizes = std::initializer_list<std::string>;

  static std::string text(std::int64_t size) { return std::to_string(size); }

  ValueId node(const std::string& op, Arguments arguments, Sizes sizes) {
    return writer_.node(op, std::move(arguments), shape_of(sizes), dtype_);
  }

  ValueId weight(const std::string& name, std::int64_t rows, std::int64_t columns,
                 std::optional<Sharding> sharding = {}) {
    std::normal_distribution<float> values(0.0F, columns == 0 ? 0.2F : 0.4F);
    std::vector<float>& weight = weights_[name];
    for (std::int64_t i = 0; i < rows * std::max<std::int64_t>(columns, 1); ++i)
      weight.push_back(values(random_) + (columns == 0 ? 1.0F : 0.0F));
    if (sharding) shardings_[name] = *sharding;
    return ids_[name] = writer_.parameter(
               name, columns == 0 ? shape_of({text(rows)}) : shape_of({text(rows), text(columns)}), dtype_);
  }

  // Returns [1, 1, tokens, dim]: the cosines or sines of each position's angles.
  ValueId angles(const std::string& function, ValueId positions) {
    std::vector<float>& table = weights_[function];
    for (std::int64_t position = 0; position < kPositions; ++position) {
      for (std::int64_t d = 0; d < kDim; ++d) {
        const double angle =
            static_cast<double>(position) * std::pow(100.0, -static_cast<double>(d % (kDim / 2)) * 2.0 / kDim);
        table.push_back(static_cast<float>(function == "cos" ? std::cos(angle) : std::sin(angle)));
      }
    }
    const ValueId all = writer_.parameter(function, shape_of({"64", text(kDim)}), dtype_);
    const ValueId rows =
        node("aten.index_select.default", {{"self", of(all)}, {"dim", number(0)}, {"index", of(positions)}},
             {"tokens", text(kDim)});
    return node("aten.view.default", {{"self", of(rows)}, {"size", numbers({"1", "1", "tokens", text(kDim)})}},
                {"1", "1", "tokens", text(kDim)});
  }

  ValueId linear(ValueId x, const std::string& name, Sizes sizes) {
    return node("aten.linear.default", {{"input", of(x)}, {"weight", of(ids_[name])}}, sizes);
  }

  ValueId norm(ValueId x, const std::string& name) {
    const ValueId scale = weight(name, kHidden, 0);
    return node("aten.rms_norm.default",
                {{"input", of(x)}, {"normalized_shape", numbers({"16"})}, {"weight", of(scale)}, {"eps", 1e-6}},
                {"tokens", "16"});
  }

  // Returns [1, heads, tokens, dim] from [tokens, heads * dim].
  ValueId heads_of(ValueId x, std::int64_t heads) {
    const ValueId split =
        node("aten.view.default", {{"self", of(x)}, {"size", numbers({"1", "tokens", text(heads), text(kDim)})}},
             {"1", "tokens", text(heads), text(kDim)});
    return node("aten.permute.default", {{"self", of(split)}, {"dims", numbers({"0", "2", "1", "3"})}},
                {"1", text(heads), "tokens", text(kDim)});
  }

  ValueId rotated(ValueId x, ValueId cos, ValueId sin, std::int64_t heads) {
    const auto half = [&](std::int64_t first) {
      return node("aten.slice.Tensor",
                  {{"self", of(x)}, {"dim", number(3)}, {"start", number(first)}, {"end", number(first + kDim / 2)}},
                  {"1", text(heads), "tokens", text(kDim / 2)});
    };
    const ValueId first = half(0), second = half(kDim / 2);
    const ValueId negative =
        node("aten.neg.default", {{"self", of(second)}}, {"1", text(heads), "tokens", text(kDim / 2)});
    const ValueId turned =
        node("aten.cat.default",
             {{"tensors", std::vector<ValueRef>{ValueRef{negative}, ValueRef{first}}}, {"dim", number(-1)}},
             {"1", text(heads), "tokens", text(kDim)});
    const Sizes sizes = {"1", text(heads), "tokens", text(kDim)};
    const ValueId straight = node("aten.mul.Tensor", {{"self", of(x)}, {"other", of(cos)}}, sizes);
    const ValueId across = node("aten.mul.Tensor", {{"self", of(turned)}, {"other", of(sin)}}, sizes);
    return node("aten.add.Tensor", {{"self", of(straight)}, {"other", of(across)}}, sizes);
  }

  ValueId add_layer(ValueId x, const std::string& name, int layer, ValueId cos, ValueId sin) {
    const ValueId normed = norm(x, name + "norm1");
    weight(name + "q", kHeads * kDim, kHidden, Sharding{"tp", 0, kHeads / kKeyHeads * kDim});
    for (const std::string one : {"k", "v"}) weight(name + one, kKeyHeads * kDim, kHidden, Sharding{"tp", 0, kDim});
    weight(name + "o", kHidden, kHeads * kDim, Sharding{"tp", 1, kHeads / kKeyHeads * kDim});
    const ValueId q =
        rotated(heads_of(linear(normed, name + "q", {"tokens", text(kHeads * kDim)}), kHeads), cos, sin, kHeads);
    const ValueId k = rotated(heads_of(linear(normed, name + "k", {"tokens", text(kKeyHeads * kDim)}), kKeyHeads), cos,
                              sin, kKeyHeads);
    const ValueId v = heads_of(linear(normed, name + "v", {"tokens", text(kKeyHeads * kDim)}), kKeyHeads);
    const ValueId attended = node("accord.attention.default",
                                  {{"query", of(q)},
                                   {"key", of(k)},
                                   {"value", of(v)},
                                   {"layer", number(layer)},
                                   {"scale", 0.25},
                                   {"window", number(layer == 0 ? 0 : 7)}},
                                  {"1", "tokens", text(kHeads), text(kDim)});
    const ValueId flat = node("aten.view.default", {{"self", of(attended)}, {"size", numbers({"tokens", "-1"})}},
                              {"tokens", text(kHeads * kDim)});
    const ValueId middle =
        node("aten.add.Tensor", {{"self", of(x)}, {"other", of(linear(flat, name + "o", {"tokens", "16"}))}},
             {"tokens", "16"});
    const ValueId ready = norm(middle, name + "norm2");
    for (const std::string one : {"gate", "up"}) weight(name + one, kInner, kHidden, Sharding{"tp", 0, kInner / 2});
    weight(name + "down", kHidden, kInner, Sharding{"tp", 1, kInner / 2});
    const ValueId gate =
        node("aten.silu.default", {{"self", of(linear(ready, name + "gate", {"tokens", "24"}))}}, {"tokens", "24"});
    const ValueId inner =
        node("aten.mul.Tensor", {{"self", of(gate)}, {"other", of(linear(ready, name + "up", {"tokens", "24"}))}},
             {"tokens", "24"});
    return node("aten.add.Tensor",
                {{"self", of(middle)}, {"other", of(linear(inner, name + "down", {"tokens", "16"}))}},
                {"tokens", "16"});
  }

  const DType dtype_;
  std::mt19937 random_{5};
  GraphWriter writer_;
  std::map<std::string, ValueId> ids_;
  Weights weights_;
  std::map<std::string, Sharding> shardings_;
};

}  // namespace accord::engine
