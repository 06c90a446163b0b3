// Works for C callers.
#include "accord/work.hpp"

#include <optional>

#include "accord/accord.h"
#include "c/answer.hpp"
#include "c/handles.hpp"
#include "c/times.hpp"

using accord::Status;
using accord::c::answer;

extern "C" accord_status_t accord_work_test(accord_work_t* work, int32_t* done) {
  return answer(__func__, {{"work", work}, {"done", done}}, [&](std::string_view) {
    *done = work->work.test() ? 1 : 0;
    return Status();
  });
}

extern "C" accord_status_t accord_work_wait(accord_work_t* work) {
  return answer(__func__, {{"work", work}}, [&](std::string_view) { return work->work.wait(); });
}

extern "C" accord_status_t accord_work_block(accord_work_t* work, void* stream) {
  return answer(__func__, {{"work", work}}, [&](std::string_view) { return work->work.block({stream}); });
}

extern "C" accord_status_t accord_work_wait_for(accord_work_t* work, int64_t timeout_ns, int32_t* done) {
  return answer(__func__, {{"work", work}, {"done", done}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const accord::Duration timeout, accord::c::wait_of(timeout_ns, function));
    const std::optional<Status> ended = work->work.wait_for(timeout);
    *done = ended ? 1 : 0;
    return ended.value_or(Status());
  });
}

extern "C" accord_status_t accord_work_status(accord_work_t* work) {
  return answer(__func__, {{"work", work}}, [&](std::string_view function) -> Status {
    if (std::optional<Status> ended = work->work.status()) return *std::move(ended);
    return Status(accord::StatusCode::kWrongState, std::string(function) + ": the operation is still in progress");
  });
}

extern "C" accord_status_t accord_work_on_end(accord_work_t* work,
                                              void (*callback)(accord_status_t status, void* context), void* context) {
  const void* const given = reinterpret_cast<const void*>(callback);
  return answer(__func__, {{"work", work}, {"callback", given}}, [&](std::string_view) -> Status {
    // The error must be set on the thread on which the callback reads it.
    work->work.on_end(
        [callback, context](const Status& status) { callback(accord::c::record_status(status), context); });
    return {};
  });
}

extern "C" void accord_work_free(accord_work_t* work) { delete work; }
