#pragma once
// Changes a resource limit of this process for as long as a test needs it.

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace accord::testing {

/// Sets the soft limit of `which` until the end of the scope.
class ResourceLimit {
 public:
  ResourceLimit(__rlimit_resource which, rlim_t value) : which_(which) {
    getrlimit(which_, &before_);
    const rlimit limit = {value, before_.rlim_max};
    EXPECT_EQ(setrlimit(which_, &limit), 0);
  }
  ~ResourceLimit() { setrlimit(which_, &before_); }
  ResourceLimit(const ResourceLimit&) = delete;
  ResourceLimit& operator=(const ResourceLimit&) = delete;

 private:
  __rlimit_resource which_;
  rlimit before_ = {};
};

}  // namespace accord::testing
