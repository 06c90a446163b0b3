#pragma once
// Arrays in a device's memory, for any kind of device.

#include <gtest/gtest.h>

#include <vector>

#include "accord/buffer.hpp"
#include "device/runtime.hpp"

namespace accord::testing {

/// A device, and the stream in which a test uses it.
struct OnDevice {
  device::Runtime& runtime;
  Device device;
  Stream stream = {};

  void synchronize() const {
    const Status status = runtime.synchronize(device, stream);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
};

/// Elements of any dtype, given by their bytes.
class DeviceArray {
 public:
  DeviceArray(const OnDevice& on, const std::vector<std::byte>& bytes, DType dtype)
      : on_(on), dtype_(dtype), bytes_(bytes.size()) {
    if (bytes_ == 0) return;
    data_ = static_cast<std::byte*>(on.runtime.allocate(on.device, bytes_).value());
    put(bytes);
  }
  template <typename T>
  DeviceArray(const OnDevice& on, const std::vector<T>& values, DType dtype)
      : DeviceArray(on, bytes_of(values), dtype) {}
  ~DeviceArray() {
    if (data_ == nullptr) return;
    on_.synchronize();
    EXPECT_TRUE(on_.runtime.release(on_.device, data_).ok());
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  Buffer buffer() const { return {data_, bytes_ / size_of(dtype_), dtype_, on_.device}; }
  /// Returns `count` elements from position `first` on.
  Buffer part(std::size_t first, std::size_t count) const {
    return {data_ + first * size_of(dtype_), count, dtype_, on_.device};
  }
  // Both synchronize first. Otherwise the copy would wait inside CUDA for the work before it, and might hold up the
  // threads of other ranks, which this work may wait for.
  /// Replaces the elements once everything in the stream is done.
  void put(const std::vector<std::byte>& bytes) const {
    if (bytes_ == 0) return;
    on_.synchronize();
    ASSERT_TRUE(on_.runtime.copy(data_, bytes.data(), bytes_, on_.device, on_.stream).ok());
    on_.synchronize();
  }
  /// Returns the elements once everything in the stream is done.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> found(bytes_);
    on_.synchronize();
    if (bytes_ > 0) {
      EXPECT_TRUE(on_.runtime.copy(found.data(), data_, bytes_, on_.device, on_.stream).ok());
    }
    on_.synchronize();
    return found;
  }
  template <typename T>
  std::vector<T> values() const {
    const std::vector<std::byte> found = bytes();
    const auto* const first = reinterpret_cast<const T*>(found.data());
    return {first, first + found.size() / sizeof(T)};
  }

 private:
  template <typename T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    const auto* const first = reinterpret_cast<const std::byte*>(values.data());
    return {first, first + values.size() * sizeof(T)};
  }

  const OnDevice on_;
  const DType dtype_;
  const std::size_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace accord::testing
