#pragma once
// The tests' NCCL library in another version, without the functions of later versions.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "comm/nccl/library.hpp"
#include "device/nccl_control.hpp"

namespace accord::testing {

/// As long as it exists, groups that make their first call on a device get this version.
class OtherNccl {
 public:
  explicit OtherNccl(int version) {
    set_version(version);
    Result<std::unique_ptr<const comm::nccl::Library>> loaded = comm::nccl::load(library_path());
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    // Threads that abort communicators may outlive this object.
    static auto* const kept = new std::vector<std::unique_ptr<const comm::nccl::Library>>;
    kept->push_back(*std::move(loaded));
    comm::nccl::replace_library(kept->back().get());
  }
  ~OtherNccl() { comm::nccl::replace_library(nullptr); }
  OtherNccl(const OtherNccl&) = delete;
  OtherNccl& operator=(const OtherNccl&) = delete;
};

}  // namespace accord::testing
