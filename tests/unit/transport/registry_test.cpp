// The available transports, how they are found by name, and which ranks each one reaches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/transport.hpp"

namespace accord::transport {
namespace {

using testing::HasSubstr;

// Returns the first transport that reaches the peer, as the communicator chooses.
std::string_view preferred(const PlaceView& mine, const PlaceView& peer) {
  for (const Transport* transport : transports()) {
    if (transport->reaches(mine, peer)) return transport->name();
  }
  return "none";
}

TEST(Transports, inproc_is_preferred_in_one_process_shm_on_one_host_and_ucx_between_hosts) {
  const std::string between = transport_by_name("ucx").ok() ? "ucx" : "none";
  const PlaceView mine{.host = "a", .process = 10};
  EXPECT_EQ(preferred(mine, {.host = "a", .process = 10}), "inproc");
  EXPECT_EQ(preferred(mine, {.host = "a", .process = 11}), "shm");
  EXPECT_EQ(preferred(mine, {.host = "a", .process = 10, .process_space = "another"}), "shm");
  EXPECT_EQ(preferred(mine, {.host = "b", .process = 10}), between);
  EXPECT_EQ(preferred(mine, {.host = "b", .process = 11}), between);
}

TEST(Transports, reachability_is_symmetric) {
  const PlaceView places[] = {{"a", 1}, {"a", 2}, {"b", 1}};
  for (const Transport* transport : transports()) {
    for (const PlaceView& one : places) {
      for (const PlaceView& other : places) {
        EXPECT_EQ(transport->reaches(one, other), transport->reaches(other, one)) << transport->name();
      }
    }
  }
}

TEST(Transports, are_found_by_name) {
  for (Transport* transport : transports()) {
    const auto found = transport_by_name(transport->name());
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, transport);
  }
}

TEST(Transports, an_unknown_name_suggests_the_nearest) {
  const Status near = transport_by_name("smh").status();
  EXPECT_EQ(near.code(), StatusCode::kNotFound);
  EXPECT_THAT(near.message(), HasSubstr("\"shm\""));
  const Status far = transport_by_name("carrier pigeon").status();
  EXPECT_EQ(far.code(), StatusCode::kNotFound);
  EXPECT_THAT(far.message(), HasSubstr("inproc"));
}

}  // namespace
}  // namespace accord::transport
