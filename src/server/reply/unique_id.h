// Ids of requests and answers.
#pragma once

#include <string>

namespace mneme::server {

// 24 digits and letters that no other call in this process, and hardly one in another, returns.
//
// Threads  any.
std::string unique_id();

}  // namespace mneme::server
