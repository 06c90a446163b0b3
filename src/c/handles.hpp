#pragma once
// The objects behind the handles of accord.h: each holds the C++ handle, which keeps its object alive by itself. That
// is why handles can be freed in any order.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "accord/accord.h"
#include "accord/communicator.hpp"
#include "accord/device_window.hpp"
#include "accord/elastic.hpp"
#include "accord/engine.hpp"
#include "accord/expert_parallel.hpp"
#include "accord/language_model.hpp"
#include "accord/prepared.hpp"
#include "accord/store.hpp"
#include "accord/window.hpp"
#include "accord/work.hpp"

// NOLINTBEGIN(readability-identifier-naming): the names of accord.h
struct accord_store {
  std::shared_ptr<accord::Store> store;
  std::string description;
};

struct accord_communicator {
  accord::Communicator communicator;
};

struct accord_elastic_group {
  accord::ElasticGroup group;
};

struct accord_window {
  accord::Window window;
  std::mutex mutex = {};
  std::map<const void*, accord::WindowBlock> blocks = {};  ///< by address; guarded by the mutex
};

struct accord_device_window {
  accord::DeviceWindow window;
};

struct accord_work {
  accord::Work work;
};

struct accord_prepared {
  accord::Prepared prepared;
};

struct accord_expert_group {
  accord::ExpertGroup group;
};

struct accord_expert_handle {
  accord::ExpertHandle handle;
};

struct accord_engine {
  accord::Engine engine;
  std::optional<accord::EngineContext> context = {};  ///< of its runs, created by the first one
  std::vector<accord::TensorView> outputs = {};       ///< of the last run; the caller has pointers to their shapes
};

struct accord_language_model {
  accord::LanguageModel model;
};

struct accord_text_stream {
  accord::TextStream stream;
  std::string text = {};  ///< of the last event
};
// NOLINTEND(readability-identifier-naming)
