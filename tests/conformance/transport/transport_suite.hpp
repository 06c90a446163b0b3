#pragma once
// The suite for every transport whose ranks may be threads of one process. A transport joins by being listed in
// transports(); the tests are named after it.

#include <gtest/gtest.h>

#include <string>

#include "transport/transport.hpp"

namespace accord::transport {

class TransportSuite : public testing::TestWithParam<Transport*> {
 protected:
  void SetUp() override {
    const Status viable = transport().viable();
    if (!viable.ok())
      GTEST_SKIP() << "transport " << transport().name() << " cannot be used here: " << viable.message();
  }
  Transport& transport() const { return *GetParam(); }
};

inline std::string name_of(const testing::TestParamInfo<Transport*>& info) { return std::string(info.param->name()); }

}  // namespace accord::transport

/// Runs the TransportSuite tests of `Suite` over every transport.
#define ACCORD_TEST_ALL_TRANSPORTS(Suite)                                                    \
  INSTANTIATE_TEST_SUITE_P(All, Suite, testing::ValuesIn(::accord::transport::transports()), \
                           ::accord::transport::name_of)
