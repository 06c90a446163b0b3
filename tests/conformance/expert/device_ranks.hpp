#pragma once
// Expert groups on devices over host memory, next to the same group on CPU ranks, with which they must agree bit by
// bit.

#include <cstring>
#include <random>

#include "accord/expert_parallel.hpp"
#include "conformance/comm/host_devices.hpp"
#include "conformance/expert/reference.hpp"

namespace accord::testing {

using Bytes = std::vector<std::byte>;

/// Returns random finite elements, small and large ones; those of float16 and of 8 bits include denormals.
inline Bytes random_elements(unsigned seed, std::size_t count, DType dtype) {
  std::mt19937_64 random(seed);
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random();
    const auto store = [&](auto element) { std::memcpy(bytes.data() + i * sizeof element, &element, sizeof element); };
    const double value = static_cast<double>(bits >> 11) / 4503599627370496.0 - 1.0;
    switch (dtype) {  // one bit of the exponent is never set
      case DType::kFloat64: store(value); break;
      case DType::kFloat32: store(static_cast<float>(value)); break;
      case DType::kFloat16: store(static_cast<std::uint16_t>(bits & 0xBFFF)); break;
      case DType::kBFloat16: store(static_cast<std::uint16_t>((bits & 0x83FF) | 0x3C00)); break;
      default: store(static_cast<std::uint8_t>(bits & 0xBF)); break;
    }
  }
  return bytes;
}

/// The same array on the host and on a device. The constructor without bytes fills it with kSentinel.
class Twin {
 public:
  static constexpr std::byte kSentinel{0x5A};
  Twin(const OnDevice& on, Bytes bytes, DType dtype)
      : dtype_(dtype), host_(std::move(bytes)), device_(on, host_, dtype) {}
  Twin(const OnDevice& on, std::size_t count, DType dtype)
      : Twin(on, Bytes(count * size_of(dtype), kSentinel), dtype) {}
  Buffer host() { return {host_.data(), host_.size() / size_of(dtype_), dtype_, {}}; }
  Buffer device() const { return device_.buffer(); }
  /// The host's bytes; and a check that the device's bytes are equal.
  const Bytes& host_bytes() const { return host_; }
  void expect_equal(std::string_view label) const { EXPECT_TRUE(host_ == device_.bytes()) << label; }

 private:
  const DType dtype_;
  Bytes host_;
  DeviceArray device_;
};

/// Creates a group, which must succeed.
inline ExpertGroup made(Communicator& comm, const ExpertGroupConfig& config) {
  Result<ExpertGroup> group = ExpertGroup::create(comm, config);
  EXPECT_TRUE(group.ok()) << group.status().to_string();
  return std::move(group).value();
}

/// A group on the CPU and one on the devices, with one handle each.
struct TwoGroups {
  ExpertGroup host, device;
  ExpertHandle host_handle, device_handle;

  /// `algorithm`: of the group on devices.
  static TwoGroups make(Communicator& comm, ExpertGroupConfig config, Device device,
                        ExpertAlgorithm algorithm = ExpertAlgorithm::kAuto) {
    ExpertGroup on_host = made(comm, config);
    config.device = device;
    config.algorithm = algorithm;
    ExpertGroup on_device = made(comm, config);
    const ExpertHandle first = on_host.make_handle().value(), second = on_device.make_handle().value();
    return {std::move(on_host), std::move(on_device), first, second};
  }
};

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto* const first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

/// Returns the ids of one rank, one token after the other.
inline std::vector<std::int64_t> flat(const Ids& ids, Rank rank) {
  std::vector<std::int64_t> all;
  for (const auto& token : ids[static_cast<std::size_t>(rank)]) all.insert(all.end(), token.begin(), token.end());
  return all;
}

/// Expects the device's map to equal the CPU's, both in the device's memory and after fetch().
inline void expect_same_map(const TwoGroups& groups, const OnDevice& on) {
  const ExpertHandle &host = groups.host_handle, &device = groups.device_handle;
  const auto read = [&](const ConstBuffer& buffer) {
    std::vector<std::int64_t> values(buffer.count);
    EXPECT_TRUE(on.runtime.copy(values.data(), buffer.data, buffer.bytes(), on.device, on.stream).ok());
    on.synchronize();
    return values;
  };
  const auto list = [](const auto& span) { return std::vector(span.begin(), span.end()); };
  const ExpertDeviceMap there = device.on_device();
  EXPECT_EQ(read(there.counts), list(host.counts()));
  EXPECT_EQ(read(there.numbers)[0], host.recv_rows());
  const auto& mine = host.ranks()[static_cast<std::size_t>(groups.host.rank())];
  EXPECT_EQ(read(there.numbers)[3], mine.out_of_range + mine.duplicates);
  EXPECT_EQ(static_cast<std::uint64_t>(read(there.fingerprint)[0]), host.fingerprint());
  ASSERT_TRUE(device.fetch(on.stream).ok());
  EXPECT_EQ(list(device.counts()), list(host.counts()));
  EXPECT_EQ(list(device.rows()), list(host.rows()));
  EXPECT_EQ(device.recv_rows(), host.recv_rows());
  EXPECT_EQ(device.total_rows(), host.total_rows());
  EXPECT_EQ(device.fingerprint(), host.fingerprint());
  EXPECT_EQ(list(device.dropped()), list(host.dropped()));
  for (std::size_t r = 0; r < host.ranks().size(); ++r)
    EXPECT_EQ(std::memcmp(&device.ranks()[r], &host.ranks()[r], sizeof(ExpertRankCounts)), 0) << "rank " << r;
  std::vector<ExpertChoice> expected(static_cast<std::size_t>(host.recv_rows())), found(expected.size());
  host.sources(expected);
  device.sources(found);
  EXPECT_EQ(found, expected);
}

}  // namespace accord::testing
