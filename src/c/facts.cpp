// The C interface of include/accord/info.hpp.
#include <string>

#include "accord/accord.h"
#include "accord/info.hpp"
#include "c/answer.hpp"
#include "c/bytes_out.hpp"

extern "C" const char* accord_version(void) { return accord::version().data(); }  // a literal, so it is null-terminated

extern "C" accord_status_t accord_check_feature(const char* name) {
  return accord::c::answer(__func__, {{"name", name}}, [&](std::string_view) { return accord::check_feature(name); });
}

extern "C" accord_status_t accord_info_json(char* buffer, size_t size, size_t* needed) {
  return accord::c::answer(__func__, {}, [&](std::string_view function) {
    const std::string json = accord::to_json(accord::info());
    return accord::c::write_out({json.c_str(), json.size() + 1}, buffer, size, needed, function);
  });
}
