// Which libraries are accepted as NCCL.
#include "comm/nccl/library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/nccl_control.hpp"

namespace accord::comm::nccl {
namespace {

using ::testing::HasSubstr;

TEST(NcclLibrary, a_library_with_its_symbols_is_loaded_with_its_version_and_path) {
  const Result<std::unique_ptr<const Library>> library = load(testing::library_path());
  ASSERT_TRUE(library.ok()) << library.status().to_string();
  EXPECT_EQ((**library).version, 22907);
  EXPECT_THAT((**library).path, HasSubstr("accord_test_device"));
  EXPECT_EQ(version_text((**library).version), "2.29.7");
  EXPECT_EQ(version_text(2708), "2.7.8");
}

TEST(NcclLibrary, a_version_that_is_too_old_is_rejected) {
  testing::set_version(21703);
  const Status status = load(testing::library_path()).status();
  testing::reset_nccl();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("is NCCL 2.17.3, older than 2.18.0"));
}

TEST(NcclLibrary, newer_functions_are_available_from_their_version_on) {
  for (const int version : {21800, 21900, 22600, 22700, 22800, 22900}) {
    testing::set_version(version);
    const Result<std::unique_ptr<const Library>> library = load(testing::library_path());
    testing::reset_nccl();
    ASSERT_TRUE(library.ok()) << library.status().to_string();
    const Functions& call = (**library).call;
    EXPECT_EQ(call.MemAlloc != nullptr, version >= 21900) << version;
    EXPECT_EQ(call.CommRegister != nullptr, version >= 21900) << version;
    EXPECT_EQ(call.CommWindowRegister != nullptr, version >= 22700) << version;
    EXPECT_EQ(call.CommShrink != nullptr, version >= 22700) << version;
    EXPECT_EQ(call.CommRevoke != nullptr, version >= 22800) << version;
  }
}

TEST(NcclLibrary, a_missing_or_different_library_is_an_error_that_names_it) {
  const Status other = load("libm.so.6").status();
  EXPECT_EQ(other.code(), StatusCode::kUnsupported);
  EXPECT_THAT(other.message(), HasSubstr("libm.so.6 does not report its version"));
  const Status none = load("/nowhere/libnccl.so.2").status();
  EXPECT_EQ(none.code(), StatusCode::kNotFound);
  EXPECT_THAT(none.message(), HasSubstr("/nowhere/libnccl.so.2"));
}

TEST(NcclLibrary, errors_include_the_last_message_of_the_library) {
  const Result<std::unique_ptr<const Library>> library = load(testing::library_path());
  ASSERT_TRUE(library.ok());
  EXPECT_EQ((**library).failure("AllReduce", kRemoteError).code(), StatusCode::kPeerLost);
  const Status status = (**library).failure("AllReduce", kSystemError);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("ncclAllReduce: "));
}

}  // namespace
}  // namespace accord::comm::nccl
