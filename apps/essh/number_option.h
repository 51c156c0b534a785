#pragma once
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "apps/essh/command_line.h"

namespace essh::verbs {

template <class T>
struct NumberOf {
  using Type = T;
};
template <class T>
struct NumberOf<std::vector<T>> {
  using Type = T;
};

// A number or list of numbers in [least, most], decimal only: no NaN, infinity, wrapping or octal. The help shows the
// range after the type. Every numeric option of a verb is made by this or by add_seed(). Numbers are int, int64,
// uint64, float and double; lists are of int32, int64 and double.
template <class T>
Option* add_number(Verb& verb, const std::string& names, T& value, const std::string& help,
                   std::type_identity_t<typename NumberOf<T>::Type> least,
                   std::type_identity_t<typename NumberOf<T>::Type> most);

// --seed, an unsigned 64-bit number.
Option* add_seed(Verb& verb, std::uint64_t& value, const std::string& help);

}  // namespace essh::verbs
