#pragma once
// Engines on devices, both devices over host memory and GPUs, next to the same engines on the CPU.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "device/blas.hpp"
#include "device/device_memory.hpp"
#include "device/host_blas.hpp"
#include "device/host_runtime.hpp"
#include "device/nccl_control.hpp"
#include "device/numbers.hpp"
#include "device/runtime.hpp"
#include "ranks/thread_ranks.hpp"
#include "unit/engine/package/small_packages.hpp"

namespace accord::testing {

inline constexpr Device kGpu{DeviceType::kCuda, 0};

/// A tensor of any dtype, stored as bytes, for use as an input or a weight.
class HostTensor {
 public:
  HostTensor(DType dtype, std::vector<std::int64_t> shape, const std::vector<float>& values)
      : dtype_(dtype), shape_(std::move(shape)), bytes_(values.size() * size_of(dtype) + 1) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      if (kind_of(dtype) == DTypeKind::kFloat) {
        device::store_float(bytes_.data(), dtype, at, values[i]);
      } else {
        device::store_integer(bytes_.data(), dtype, at, static_cast<std::int64_t>(values[i]));
      }
    }
    count_ = values.size();
  }
  TensorView view() { return {{bytes_.data(), count_, dtype_, {}}, shape_}; }

 private:
  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::vector<std::byte> bytes_;
  std::size_t count_ = 0;
};

/// Returns the elements of a run's output as floats, wherever the output is.
inline std::vector<float> floats_of(const TensorView& view) {
  const Buffer& buffer = view.buffer;
  std::vector<std::byte> bytes(buffer.bytes() + 1);
  if (buffer.device == Device()) {
    std::memcpy(bytes.data(), buffer.data, buffer.bytes());
  } else if (buffer.count > 0) {
    device::Runtime* const runtime = device::runtime_of(buffer.device.type).value();
    EXPECT_TRUE(runtime->copy(bytes.data(), buffer.data, buffer.bytes(), buffer.device, {}).ok());
    EXPECT_TRUE(runtime->synchronize(buffer.device, {}).ok());
  }
  std::vector<float> values;
  for (std::size_t i = 0; i < buffer.count; ++i)
    values.push_back(device::load_float(bytes.data(), buffer.dtype, static_cast<std::int64_t>(i)));
  return values;
}

/// The devices on which a test runs.
enum class Devices : std::uint8_t {
  kOfHostMemory,   ///< HostRuntime's, with HostBlas's products
  kOfThisMachine,  ///< its GPUs, with cuBLASLt's
};

/// Uses such devices. No object of those over host memory may be left at the end.
class DeviceEngines : public ::testing::Test {
 protected:
  explicit DeviceEngines(Devices devices = Devices::kOfHostMemory) : devices_(devices) {
    if (!counts()) return;
    HostRuntime::instance().set_count(4);
    device::replace_runtime(DeviceType::kCuda, &HostRuntime::instance());
    device::replace_blas(DeviceType::kCuda, &HostBlas::instance());
  }
  ~DeviceEngines() override {
    if (!counts()) return;
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (HostRuntime::instance().live() != LiveObjects{} && std::chrono::steady_clock::now() < late)
      std::this_thread::yield();
    EXPECT_EQ(HostRuntime::instance().live(), LiveObjects{});
    reset_nccl();
    device::replace_blas(DeviceType::kCuda, nullptr);
    device::replace_runtime(DeviceType::kCuda, nullptr);
  }

  /// Whether launches of kernels and products are counted, which HostRuntime and HostBlas do.
  bool counts() const { return devices_ == Devices::kOfHostMemory; }
  /// Returns why there are no such devices, or no products on them.
  static Status viable() {
    ACCORD_RETURN_IF_ERROR(device::runtime_of(DeviceType::kCuda).status());
    return device::blas_of(DeviceType::kCuda).status();
  }
  /// REQUIRES: viable().
  static device::Runtime& runtime() { return *device::runtime_of(DeviceType::kCuda).value(); }
  static device::Blas& blas() { return *device::blas_of(DeviceType::kCuda).value(); }

  using Outputs = std::vector<std::vector<float>>;

  /// Returns the outputs of an engine of these parts on `device`. Runs it three times, so that on a device it is
  /// captured and launched as a graph.
  static Result<Outputs> run_on(Device device, const EngineParts& parts, std::vector<HostTensor> inputs) {
    ACCORD_ASSIGN_OR_RETURN(Engine engine, Engine::assemble(parts, {}, {.device = device}));
    ACCORD_RETURN_IF_ERROR(engine.bind());
    ACCORD_ASSIGN_OR_RETURN(EngineContext context, engine.create_context());
    std::vector<TensorView> views;
    for (HostTensor& input : inputs) views.push_back(input.view());
    Outputs outputs;
    for (int i = 0; i < 3; ++i) {
      ACCORD_ASSIGN_OR_RETURN(const std::vector<TensorView> made, context.run(views));
      Outputs these;
      for (const TensorView& output : made) {
        EXPECT_EQ(output.buffer.device, device);
        these.push_back(floats_of(output));
      }
      for (std::size_t at = 0; at < outputs.size(); ++at) expect_near(these[at], outputs[at], 0.0F);
      outputs = std::move(these);
    }
    return outputs;
  }

  /// Expects that a device's results match the CPU's within `tolerance` times the larger of 1 and the number.
  static void expect_same(const EngineParts& parts, const std::vector<HostTensor>& inputs, float tolerance) {
    const Result<Outputs> cpu = run_on({}, parts, inputs);
    ASSERT_TRUE(cpu.ok()) << cpu.status().to_string();
    const Result<Outputs> gpu = run_on(kGpu, parts, inputs);
    ASSERT_TRUE(gpu.ok()) << gpu.status().to_string();
    ASSERT_EQ(gpu->size(), cpu->size());
    for (std::size_t i = 0; i < cpu->size(); ++i) expect_near((*gpu)[i], (*cpu)[i], tolerance);
  }

  static void expect_near(const std::vector<float>& got, const std::vector<float>& expected, float tolerance) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (std::isnan(expected[i]) || std::isinf(expected[i])) {
        EXPECT_EQ(std::isnan(got[i]), std::isnan(expected[i])) << "element " << i;
        if (std::isinf(expected[i])) {
          EXPECT_EQ(got[i], expected[i]) << "element " << i;
        }
      } else {
        ASSERT_NEAR(got[i], expected[i], tolerance * std::max(1.0F, std::fabs(expected[i]))) << "element " << i;
      }
    }
  }

 private:
  const Devices devices_;
};

/// Tests of `Base` that run on devices over host memory and, where the machine has one, on a GPU. Needs TEST_P and
/// two instances: one over kHostMemory with the name Host, and one over kGpus with the name Cuda, by which
/// scripts/test-gpu finds it.
template <typename Base = DeviceEngines>
class OnAnyDevice : public Base, public ::testing::WithParamInterface<Devices> {
 protected:
  OnAnyDevice() : Base(GetParam()) {}
  void SetUp() override {
    if (const Status status = Base::viable(); !status.ok()) GTEST_SKIP() << status.to_string();
    Base::SetUp();
  }
};
inline const auto kHostMemory = ::testing::Values(Devices::kOfHostMemory);
inline const auto kGpus = ::testing::Values(Devices::kOfThisMachine);

/// Returns numbers between -2 and 2, the same in every run.
inline std::vector<float> some_numbers(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-2.0F, 2.0F);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = values(random);
  return numbers;
}

}  // namespace accord::testing
