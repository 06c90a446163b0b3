// Elastic groups for C callers.
#include "accord/elastic.hpp"

#include <optional>

#include "accord/accord.h"
#include "c/answer.hpp"
#include "c/communicator_options.hpp"
#include "c/handles.hpp"
#include "c/structs.hpp"
#include "c/times.hpp"

using accord::ElasticGroup;
using accord::ElasticOptions;
using accord::Result;
using accord::Status;
using accord::c::answer;

namespace {

Result<ElasticOptions> elastic_options_of(const accord_elastic_options_t* given, std::string_view function) {
  ACCORD_ASSIGN_OR_RETURN(const accord_elastic_options_t read, accord::c::read_struct(given, function));
  ElasticOptions options;
  ACCORD_ASSIGN_OR_RETURN(options.communicator, accord::c::options_of(read.communicator, function));
  ACCORD_ASSIGN_OR_RETURN(options.form_timeout,
                          accord::c::timeout_of(read.form_timeout_ns, function, "form_timeout_ns"));
  ACCORD_ASSIGN_OR_RETURN(const auto last_call, accord::c::timeout_of(read.last_call_ns, function, "last_call_ns"));
  if (last_call) options.last_call = *last_call;
  if (read.name != nullptr) options.name = read.name;
  if (read.min_ranks != 0) options.min_ranks = read.min_ranks;
  if (read.max_ranks != 0) options.max_ranks = read.max_ranks;
  return options;
}

}  // namespace

extern "C" accord_status_t accord_elastic_group_open(accord_store_t* store, const accord_elastic_options_t* options,
                                                     accord_elastic_group_t** group) {
  if (group != nullptr) *group = nullptr;
  return answer(__func__, {{"store", store}, {"group", group}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(ElasticOptions read, elastic_options_of(options, function));
    ACCORD_ASSIGN_OR_RETURN(ElasticGroup opened, ElasticGroup::open(store->store, std::move(read)));
    *group = new accord_elastic_group{std::move(opened)};
    return {};
  });
}

extern "C" accord_status_t accord_elastic_group_from_environment(const accord_elastic_options_t* options,
                                                                 accord_elastic_group_t** group) {
  if (group != nullptr) *group = nullptr;
  return answer(__func__, {{"group", group}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(ElasticOptions read, elastic_options_of(options, function));
    ACCORD_ASSIGN_OR_RETURN(ElasticGroup opened, ElasticGroup::from_environment(std::move(read)));
    *group = new accord_elastic_group{std::move(opened)};
    return {};
  });
}

extern "C" accord_status_t accord_elastic_group_form(accord_elastic_group_t* group,
                                                     accord_communicator_t** communicator) {
  if (communicator != nullptr) *communicator = nullptr;
  return answer(__func__, {{"group", group}, {"communicator", communicator}}, [&](std::string_view) -> Status {
    ACCORD_ASSIGN_OR_RETURN(std::optional<accord::Communicator> formed, group->group.form());
    if (formed) *communicator = new accord_communicator{*std::move(formed)};
    return {};
  });
}

extern "C" accord_status_t accord_elastic_group_others_wait(accord_elastic_group_t* group, int32_t* waits) {
  return answer(__func__, {{"group", group}, {"waits", waits}}, [&](std::string_view) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const bool others_wait, group->group.others_wait());
    *waits = others_wait ? 1 : 0;
    return {};
  });
}

extern "C" accord_status_t accord_elastic_group_most_advanced(accord_elastic_group_t* group, int64_t steps,
                                                              int32_t* rank) {
  return answer(__func__, {{"group", group}, {"rank", rank}}, [&](std::string_view) -> Status {
    ACCORD_ASSIGN_OR_RETURN(*rank, group->group.most_advanced(steps));
    return {};
  });
}

extern "C" accord_status_t accord_elastic_group_round(accord_elastic_group_t* group, int64_t* round) {
  return answer(__func__, {{"group", group}, {"round", round}}, [&](std::string_view) -> Status {
    *round = group->group.round();
    return {};
  });
}

extern "C" accord_status_t accord_elastic_group_finish(accord_elastic_group_t* group) {
  return answer(__func__, {{"group", group}}, [&](std::string_view) { return group->group.finish(); });
}

extern "C" accord_status_t accord_elastic_group_close(accord_elastic_group_t* group) {
  return answer(__func__, {{"group", group}}, [&](std::string_view) -> Status {
    group->group.close();
    return {};
  });
}

extern "C" void accord_elastic_group_free(accord_elastic_group_t* group) { delete group; }
