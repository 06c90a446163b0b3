#pragma once
// Writes packages of small models for tests.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "unit/engine/graph/graph_json.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {

using Weights = std::map<std::string, std::vector<float>>;

/// Returns the bytes of a tensor as stored in the file: unit after unit of its sharding, or row-major.
inline std::string bytes_in_file(const std::vector<float>& values, const std::vector<std::int64_t>& shape,
                                 const Sharding* sharding) {
  std::vector<float> ordered;
  if (sharding == nullptr || sharding->dim == 0) {
    ordered = values;
  } else {
    for (std::int64_t first = 0; first < shape[1]; first += sharding->unit) {
      for (std::int64_t row = 0; row < shape[0]; ++row) {
        for (std::int64_t i = 0; i < sharding->unit; ++i)
          ordered.push_back(values[static_cast<std::size_t>(row * shape[1] + first + i)]);
      }
    }
  }
  std::string bytes(ordered.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), ordered.data(), bytes.size());
  return bytes;
}

/// Returns a sharding rule for each linear layer whose weight is divided.
inline nlohmann::json rules_of(const Graph& graph, const std::map<std::string, Sharding>& shardings) {
  std::map<ValueId, std::string> tensors;
  for (const Parameter& parameter : graph.parameters) tensors[parameter.value] = parameter.tensor;
  nlohmann::json rules = nlohmann::json::array();
  for (const Node& node : graph.nodes) {
    if (node.op != "aten.linear.default") continue;
    const auto sharding = shardings.find(tensors[std::get<ValueRef>(node.arguments.at("weight")).id]);
    if (sharding == shardings.end()) continue;
    rules.push_back({{"pattern", node.module},
                     {"style", sharding->second.dim == 0 ? "column" : "row"},
                     {"unit", sharding->second.unit},
                     {"group", sharding->second.group}});
  }
  return rules;
}

/// Writes `graph` and its float32 weights to the new directory `path` in the package format.
inline void write_package(const std::filesystem::path& path, const Graph& graph, const Weights& weights,
                          const std::map<std::string, Sharding>& shardings) {
  using nlohmann::json;
  const auto text_span = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  json tensors = json::array();
  json header = json::object();
  std::string data;
  for (const Parameter& parameter : graph.parameters) {
    std::vector<std::int64_t> shape;
    for (const SymbolicInt& size : graph.values[static_cast<std::size_t>(parameter.value)].shape)
      shape.push_back(size.constant());
    const auto found = shardings.find(parameter.tensor);
    const Sharding* sharding = found == shardings.end() ? nullptr : &found->second;
    const std::string bytes = bytes_in_file(weights.at(parameter.tensor), shape, sharding);
    std::vector<std::int64_t> stored = shape;
    std::size_t granule = 1 << 20;
    json entry = {
        {"name", parameter.tensor}, {"dtype", "float32"}, {"shape", shape}, {"file", "weights-00001.safetensors"}};
    if (sharding != nullptr) {
      const auto dim = static_cast<std::size_t>(sharding->dim);
      stored[dim] = sharding->unit;
      stored.insert(stored.begin(), shape[dim] / sharding->unit);
      granule = bytes.size() / static_cast<std::size_t>(stored[0]);
      entry["sharding"] = {{"group", sharding->group}, {"dim", sharding->dim}, {"unit", sharding->unit}};
    }
    entry["offset"] = data.size();
    entry["granule_bytes"] = granule;
    entry["xxh3"] = json::array();
    for (std::size_t at = 0; at < bytes.size(); at += granule)
      entry["xxh3"].push_back(hex64(xxh3(text_span(bytes.substr(at, granule)))));
    header[parameter.tensor] = {
        {"dtype", "F32"}, {"shape", stored}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    tensors.push_back(entry);
    data += bytes;
  }
  std::string header_text = header.dump();
  header_text.resize((header_text.size() + 7) / 8 * 8, ' ');
  std::string begin(8, '\0');
  const std::uint64_t length = header_text.size();
  std::memcpy(begin.data(), &length, 8);
  begin += header_text;
  for (json& entry : tensors) entry["offset"] = entry["offset"].get<std::size_t>() + begin.size();

  const std::string graph_text = to_json(graph);
  std::set<std::string> groups = {"tp"};
  for (const auto& [tensor, sharding] : shardings) groups.insert(sharding.group);
  const json manifest = {
      {"format", "accord-package"},
      {"format_version", 2},
      {"producer", "a test"},
      {"groups", groups},
      {"rules", rules_of(graph, shardings)},
      {"files",
       {{{"name", "graph.json"}, {"size", graph_text.size()}, {"sha256", sha256_hex(text_span(graph_text))}},
        {{"name", "weights-00001.safetensors"},
         {"size", begin.size() + data.size()},
         {"header_size", begin.size()},
         {"header_sha256", sha256_hex(text_span(begin))}}}},
      {"tensors", tensors}};
  const std::string manifest_text = manifest.dump(1);
  std::filesystem::create_directories(path);
  const std::map<std::string, std::string> files = {{"graph.json", graph_text},
                                                    {"weights-00001.safetensors", begin + data},
                                                    {"manifest.json", manifest_text},
                                                    {"manifest.sha256", sha256_hex(text_span(manifest_text)) + "\n"}};
  for (const auto& [name, contents] : files) {
    std::ofstream out(path / name, std::ios::binary | std::ios::trunc);
    out << contents;
    ASSERT_TRUE(out.good());
  }
}

/// One layer of an encoder: ids -> embedding -> attention of `heads` heads of 4 -> + -> norm -> gelu layer of `heads`
/// * 8 -> + -> norm. Everything is divided by heads. `reference` computes it in double with plain loops.
class TinyEncoder {
 public:
  explicit TinyEncoder(int heads, unsigned seed = 1) : heads_(heads), hidden_(heads * 4), inner_(heads * 8) {
    std::mt19937 random(seed);
    std::normal_distribution<float> values(0.0F, 0.4F);
    const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns,
                         std::optional<Sharding> sharding) {
      std::vector<float>& weight = weights_[name];
      for (std::int64_t i = 0; i < rows * std::max<std::int64_t>(columns, 1); ++i) weight.push_back(values(random));
      const auto text = [](std::int64_t size) { return std::to_string(size); };
      ids_[name] =
          writer_.parameter(name, columns == 0 ? shape_of({text(rows)}) : shape_of({text(rows), text(columns)}));
      if (sharding) shardings_[name] = *sharding;
    };
    const Sharding by_output{"tp", 0, 4};
    writer_.symbol("b", 1, 4);
    writer_.symbol("l", 1, 16);
    const ValueId tokens = writer_.input("ids", shape_of({"b", "l"}), DType::kInt64);
    add("table", kVocabulary, hidden_, {});
    for (const std::string name : {"q", "k", "v"}) {
      add(name, hidden_, hidden_, by_output);
      add(name + ".bias", hidden_, 0, by_output);
    }
    add("o", hidden_, hidden_, Sharding{"tp", 1, 4});
    add("o.bias", hidden_, 0, {});
    add("up", inner_, hidden_, Sharding{"tp", 0, 8});
    add("up.bias", inner_, 0, Sharding{"tp", 0, 8});
    add("down", hidden_, inner_, Sharding{"tp", 1, 8});
    add("down.bias", hidden_, 0, {});
    for (const std::string name : {"norm1", "norm2"}) {
      add(name, hidden_, 0, {});
      add(name + ".bias", hidden_, 0, {});
    }
    const SymbolicShape rows = shape_of({"b", "l", std::to_string(hidden_)});
    const ValueId x =
        writer_.node("aten.embedding.default", {{"weight", of(ids_["table"])}, {"indices", of(tokens)}}, rows);
    const ValueId attended = linear(attention(x), "o", rows);
    const ValueId middle = norm(add_node(attended, x, rows), "norm1", rows);
    const SymbolicShape wide = shape_of({"b", "l", std::to_string(inner_)});
    const ValueId inner = writer_.node("aten.gelu.default", {{"self", of(linear(middle, "up", wide))}}, wide);
    writer_.output(norm(add_node(linear(inner, "down", rows), middle, rows), "norm2", rows));
  }

  void write(const std::filesystem::path& path) const { write_package(path, writer_.graph(), weights_, shardings_); }
  std::int64_t hidden() const { return hidden_; }

  std::size_t replicated_bytes() const { return bytes_if(false); }
  std::size_t sharded_bytes() const { return bytes_if(true); }

  /// [b, l, hidden] for ids [b, l].
  std::vector<double> reference(const std::vector<std::int64_t>& tokens, std::int64_t length) const {
    std::vector<double> result;
    for (std::size_t at = 0; at < tokens.size(); at += static_cast<std::size_t>(length)) {
      Rows x;
      for (std::int64_t i = 0; i < length; ++i) {
        const auto first = weights_.at("table").begin() + tokens[at + static_cast<std::size_t>(i)] * hidden_;
        x.emplace_back(first, first + hidden_);
      }
      const Rows middle = normed(added(product(attended(x), "o"), x), "norm1");
      Rows inner = product(middle, "up");
      for (auto& row : inner) {
        for (double& value : row) value = 0.5 * value * (1 + std::erf(value / std::sqrt(2.0)));
      }
      for (const auto& row : normed(added(product(inner, "down"), middle), "norm2"))
        result.insert(result.end(), row.begin(), row.end());
    }
    return result;
  }

  static constexpr std::int64_t kVocabulary = 11;

 private:
  using Rows = std::vector<std::vector<double>>;

  ValueId linear(ValueId x, const std::string& name, const SymbolicShape& shape) {
    return writer_.node("aten.linear.default",
                        {{"input", of(x)}, {"weight", of(ids_[name])}, {"bias", of(ids_[name + ".bias"])}}, shape);
  }
  ValueId add_node(ValueId a, ValueId b, const SymbolicShape& shape) {
    return writer_.node("aten.add.Tensor", {{"self", of(a)}, {"other", of(b)}}, shape);
  }
  ValueId norm(ValueId x, const std::string& name, const SymbolicShape& shape) {
    return writer_.node("aten.layer_norm.default",
                        {{"input", of(x)},
                         {"normalized_shape", numbers({std::to_string(hidden_)})},
                         {"weight", of(ids_[name])},
                         {"bias", of(ids_[name + ".bias"])},
                         {"eps", 1e-6}},
                        shape);
  }
  ValueId attention(ValueId x) {
    const std::string heads = std::to_string(heads_);
    const SymbolicShape rows = shape_of({"b", "l", std::to_string(hidden_)});
    std::map<std::string, Argument> inputs;
    for (const auto& [name, argument] :
         std::map<std::string, std::string>{{"q", "query"}, {"k", "key"}, {"v", "value"}}) {
      const ValueId split = writer_.node(
          "aten.view.default", {{"self", of(linear(x, name, rows))}, {"size", numbers({"b", "l", heads, "4"})}},
          shape_of({"b", "l", heads, "4"}));
      inputs[argument] =
          of(writer_.node("aten.permute.default", {{"self", of(split)}, {"dims", numbers({"0", "2", "1", "3"})}},
                          shape_of({"b", heads, "l", "4"})));
    }
    const ValueId y =
        writer_.node("aten.scaled_dot_product_attention.default", inputs, shape_of({"b", heads, "l", "4"}));
    const ValueId back =
        writer_.node("aten.permute.default", {{"self", of(y)}, {"dims", numbers({"0", "2", "1", "3"})}},
                     shape_of({"b", "l", heads, "4"}));
    return writer_.node("aten.view.default", {{"self", of(back)}, {"size", numbers({"b", "l", "-1"})}}, rows);
  }

  std::size_t bytes_if(bool sharded) const {
    std::size_t bytes = 0;
    for (const auto& [name, values] : weights_) {
      if (shardings_.contains(name) == sharded) bytes += values.size() * sizeof(float);
    }
    return bytes;
  }

  Rows product(const Rows& x, const std::string& name) const {
    const std::vector<float>& weight = weights_.at(name);
    const std::vector<float>& bias = weights_.at(name + ".bias");
    Rows y(x.size(), std::vector<double>(bias.begin(), bias.end()));
    for (std::size_t row = 0; row < x.size(); ++row) {
      for (std::size_t out = 0; out < bias.size(); ++out) {
        for (std::size_t in = 0; in < x[row].size(); ++in)
          y[row][out] += x[row][in] * double{weight[out * x[row].size() + in]};
      }
    }
    return y;
  }
  Rows attended(const Rows& x) const {
    const Rows q = product(x, "q");
    const Rows k = product(x, "k");
    const Rows v = product(x, "v");
    Rows y(x.size(), std::vector<double>(static_cast<std::size_t>(hidden_), 0.0));
    for (std::size_t first = 0; first < static_cast<std::size_t>(hidden_); first += 4) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        double total = 0;
        for (std::size_t j = 0; j < x.size(); ++j) {
          double score = 0;
          for (std::size_t d = first; d < first + 4; ++d) score += q[i][d] * k[j][d] / 2;
          total += std::exp(score);
          for (std::size_t d = first; d < first + 4; ++d) y[i][d] += std::exp(score) * v[j][d];
        }
        for (std::size_t d = first; d < first + 4; ++d) y[i][d] /= total;
      }
    }
    return y;
  }
  static Rows added(Rows a, const Rows& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      for (std::size_t j = 0; j < a[i].size(); ++j) a[i][j] += b[i][j];
    }
    return a;
  }
  Rows normed(Rows x, const std::string& name) const {
    for (auto& row : x) {
      double mean = 0;
      double variance = 0;
      for (const double value : row) mean += value / static_cast<double>(row.size());
      for (const double value : row) variance += (value - mean) * (value - mean) / static_cast<double>(row.size());
      for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] = (row[i] - mean) / std::sqrt(variance + 1e-6) * double{weights_.at(name)[i]} +
                 double{weights_.at(name + ".bias")[i]};
      }
    }
    return x;
  }

  std::int64_t heads_, hidden_, inner_;
  GraphWriter writer_;
  std::map<std::string, ValueId> ids_;
  Weights weights_;
  std::map<std::string, Sharding> shardings_;
};

/// Returns `count` ids that run through the vocabulary.
inline std::vector<std::int64_t> some_ids(std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(i * 7 % TinyEncoder::kVocabulary);
  return ids;
}

}  // namespace accord::engine
