// The text of descriptors: writing and reading it, and rejected texts.
#include "transport/descriptor.hpp"

#include <gtest/gtest.h>

#include <climits>

namespace accord::transport {
namespace {

constexpr DescriptorFormat kFormat{.transport = "shm", .version = 3, .field_count = 2};

TEST(Descriptor, is_written_as_documented) {
  EXPECT_EQ(write_descriptor(kFormat, {.rank = 5, .window_bytes = 4096, .fields = {"name", "cookie"}}),
            "shm/3 5 4096 name cookie");
}

TEST(Descriptor, is_read_back_as_written) {
  for (const Rank rank : {0, 7, INT_MAX}) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 40, std::size_t{LLONG_MAX}}) {
      const auto read = read_descriptor(
          kFormat, write_descriptor(kFormat, {.rank = rank, .window_bytes = bytes, .fields = {"a", "b"}}));
      ASSERT_TRUE(read.ok()) << read.status().to_string();
      EXPECT_EQ(read->rank, rank);
      EXPECT_EQ(read->window_bytes, bytes);
      EXPECT_EQ(read->fields, (std::vector<std::string>{"a", "b"}));
    }
  }
}

TEST(Descriptor, in_another_format_is_corrupt) {
  for (const char* text : {"", "shm", "shm/3", "shm/3 0 1 a", "shm/3 0 1 a b c", "shm/3 0 1 a ", "shm/3  0 1 a b",
                           " shm/3 0 1 a b", "shm/3 0 0 a b", "shm/3 2147483648 1 a b", "shm/3 0x1 1 a b",
                           "shm/ 0 1 a b", "/3 0 1 a b", "shn/3 0 1 a b", "shm/3 0 9223372036854775808 a b"}) {
    const auto read = read_descriptor(kFormat, text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.status().code(), StatusCode::kCorrupt) << text;
  }
}

TEST(Descriptor, of_another_version_or_transport_is_a_mismatch) {
  for (const char* text : {"shm/2 0 1 a b", "shm/4 0 1", "shm/4 0 1 a b c d", "inproc/1 0 1 a b"}) {
    const auto read = read_descriptor(kFormat, text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.status().code(), StatusCode::kMismatch) << text;
  }
}

}  // namespace
}  // namespace accord::transport
