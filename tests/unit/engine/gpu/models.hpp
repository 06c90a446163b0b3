#pragma once
// Packages of whole models, loaded on the tests' devices.

#include <functional>

#include "ranks/process_ranks.hpp"
#include "unit/engine/gpu/engines.hpp"
#include "unit/engine/gpu/tiny_decoder.hpp"

namespace accord::engine {

// Set before accord reads it.
inline const bool kChosen = setenv("ACCORD_NCCL", accord::testing::library_path().c_str(), 1) == 0;

class DeviceModels : public accord::testing::DeviceEngines {
 protected:
  using DeviceEngines::DeviceEngines;
  void SetUp() override {
    ASSERT_TRUE(kChosen);
    TinyEncoder(4).write(path("encoder"));
    TinyDecoder().write(path("decoder"));
  }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name + ".accord"; }

  /// Calls body(engine, rank) on one thread per rank, each with its own device.
  void on_ranks(const std::string& name, int size, const LoadOptions& options,
                const std::function<void(Engine&, Rank)>& body) const {
    accord::testing::run_thread_ranks(size, {.timeout = std::chrono::seconds(60)}, [&](const Communicator& comm) {
      LoadOptions mine = options;
      mine.device.index = static_cast<std::int16_t>(options.device.type == DeviceType::kCpu ? 0 : comm.rank());
      Result<Engine> engine = Engine::load_and_bind(path(name), {{"tp", comm}}, mine);
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      body(*engine, comm.rank());
    });
  }

  accord::testing::TemporaryDirectory directory_;
};

/// A TinyDecoder in memory. The parts refer to the weights.
struct DecoderParts {
  std::map<std::string, accord::testing::HostTensor> weights;
  EngineParts parts;

  explicit DecoderParts(DType dtype, int layers = 2) {
    const TinyDecoder model(dtype, layers);
    parts = {.name = "decoder", .graph = to_json(model.graph()), .weights = {}, .sizes = {}};
    for (const Parameter& parameter : model.graph().parameters) {
      std::vector<std::int64_t> shape;
      for (const SymbolicInt& size : model.graph().values[static_cast<std::size_t>(parameter.value)].shape)
        shape.push_back(size.constant());
      const auto made = weights.emplace(
          parameter.tensor, accord::testing::HostTensor(dtype, shape, model.weights().at(parameter.tensor)));
      parts.weights.emplace(parameter.tensor, made.first->second.view());
    }
  }
};

inline std::vector<TensorView> views_of(std::vector<accord::testing::HostTensor>& tensors) {
  std::vector<TensorView> views;
  for (accord::testing::HostTensor& tensor : tensors) views.push_back(tensor.view());
  return views;
}

inline accord::testing::HostTensor whole_numbers(std::vector<std::int64_t> shape,
                                                 const std::vector<std::int64_t>& values) {
  return accord::testing::HostTensor(DType::kInt64, std::move(shape), std::vector<float>(values.begin(), values.end()));
}

}  // namespace accord::engine
