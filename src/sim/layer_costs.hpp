#pragma once
// The operations, parameters and bytes of a rank for one microbatch and one layer. Activations have 2 bytes.

#include "sim/training.hpp"

namespace accord::sim {

class LayerCosts {
 public:
  LayerCosts(const TrainingStep& training, const TrainingGroups& groups)
      : model_(training.model),
        step_(training.step),
        groups_(groups),
        tokens_(static_cast<double>(step_.sequence) * step_.microbatch / groups.cp),
        kv_hidden_(static_cast<double>(model_.hidden) / model_.heads * model_.kv_heads) {}

  bool has_experts(int layer) const { return model_.experts > 0 && layer >= model_.dense_layers; }

  /// Floating-point operations of a rank in the forward pass, two for each product of a matrix.
  double attention_flops() const {
    const double matrices = 2 * tokens_ * attention_weights();
    const double scores =
        2 * tokens_ * step_.sequence * model_.hidden;  // half of the pairs of tokens, scores and values
    return (matrices + scores) / groups_.tp;
  }
  double mlp_flops() const { return 2 * tokens_ * mlp_weights(model_.ffn) / groups_.tp; }
  double expert_flops() const {
    const double router = static_cast<double>(model_.hidden) * model_.experts;
    return 2 * tokens_ / groups_.tp * (model_.experts_per_token * mlp_weights(model_.expert_ffn) + router);
  }
  double head_flops() const {
    return 2 * tokens_ * model_.hidden * static_cast<double>(model_.vocabulary) / groups_.tp;
  }

  /// Parameters of a rank.
  double dense_parameters(int layer) const {
    const double router = has_experts(layer) ? static_cast<double>(model_.hidden) * model_.experts : 0;
    const double mlp = has_experts(layer) ? 0 : mlp_weights(model_.ffn);
    return (attention_weights() + mlp) / groups_.tp + router + 2.0 * model_.hidden;  // two norms
  }
  double expert_parameters(int layer) const {
    return has_experts(layer) ? mlp_weights(model_.expert_ffn) * model_.experts / groups_.ep : 0;
  }
  double embedding_parameters(int stage) const {
    const double one = static_cast<double>(model_.vocabulary) * model_.hidden / groups_.tp;
    return (stage == 0 ? one : 0) + (stage == groups_.pp - 1 ? one : 0);
  }

  /// Bytes of all tokens of a context-parallel rank.
  double activation_bytes() const { return 2 * tokens_ * model_.hidden; }
  /// Bytes that a rank sends to the next stage.
  double boundary_bytes() const { return activation_bytes() / (step_.sequence_parallel ? groups_.tp : 1); }
  /// Bytes of a rank's keys and values.
  double kv_bytes() const { return 2 * 2 * tokens_ * kv_hidden_ / groups_.tp; }
  /// Bytes of a rank's tokens, once for each of their experts.
  double dispatched_bytes() const { return activation_bytes() / groups_.tp * model_.experts_per_token; }

 private:
  double attention_weights() const { return model_.hidden * (2.0 * model_.hidden + 2 * kv_hidden_); }
  double mlp_weights(int ffn) const { return (model_.gated ? 3.0 : 2.0) * model_.hidden * ffn; }

  TransformerNumbers model_;
  StepNumbers step_;
  const TrainingGroups& groups_;
  double tokens_;  // of a microbatch and a context-parallel rank
  double kv_hidden_;
};

}  // namespace accord::sim
