#pragma once
// Messages whose content both of their ranks know.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "accord/communicator.hpp"

namespace accord::testing {

/// Elements of a message: none, 8 B, 100 KB and 3 MB.
inline const std::vector<std::size_t> kMessageCounts = {0, 2, 25'600, 786'432};

/// Returns the content of message `number` of a tag.
inline std::vector<std::uint32_t> content(Rank from, std::int32_t tag, int number, std::size_t count) {
  std::mt19937 random(static_cast<std::uint32_t>(from * INT64_C(1'000'003) + tag * INT64_C(1009) + number));
  std::vector<std::uint32_t> values(count);
  for (std::uint32_t& value : values) value = static_cast<std::uint32_t>(random());
  return values;
}

inline Buffer words(std::vector<std::uint32_t>& values) { return {values.data(), values.size(), DType::kUInt32}; }

inline CommunicatorOptions message_options(const std::string& transport) {
  CommunicatorOptions options;
  options.name = "tp";
  options.timeout = std::chrono::seconds(60);
  options.transport = transport;
  return options;
}

inline void send_message(Communicator& comm, Rank to, std::int32_t tag, int number, std::size_t count) {
  std::vector<std::uint32_t> values = content(comm.rank(), tag, number, count);
  const Status status = comm.send(ConstBuffer(words(values)), to, tag);
  ASSERT_TRUE(status.ok()) << status.to_string();
}

inline void expect_message(Communicator& comm, Rank from, std::int32_t tag, int number, std::size_t count) {
  std::vector<std::uint32_t> values(count, 77);
  const Status status = comm.recv(words(values), from, tag);
  ASSERT_TRUE(status.ok()) << status.to_string();
  ASSERT_EQ(values, content(from, tag, number, count)) << "message " << number << " of tag " << tag;
}

}  // namespace accord::testing
