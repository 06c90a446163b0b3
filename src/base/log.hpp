#pragma once
// One logger, to standard error, at the level of ACCORD_LOG (trace, debug, info, warn, error, off), or info with ACCORD_DEBUG=info.

#include <spdlog/spdlog.h>

namespace accord {

/// The logger; made on first use. `log().info("connected {} ranks", n)`.
spdlog::logger& log();

}  // namespace accord
