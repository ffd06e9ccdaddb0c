// Errors as values: what went wrong, where, and what to do next. Only main turns one into an exit code.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace hexgraft {

// `code` is one of PROTOCOL.md's error codes; `message` one sentence without a final period; `hint` may be empty.
struct Error {
  std::string code;
  std::string message;
  std::string hint;
};

// Empty when all went well.
using Status = std::optional<Error>;

template <class T>
class Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT: a value is a result
  Result(Error error) : value_(std::move(error)) {}  // NOLINT: so is an error
  explicit operator bool() const { return value_.index() == 0; }
  T& operator*() { return std::get<0>(value_); }
  T* operator->() { return &std::get<0>(value_); }
  const Error& error() const { return std::get<1>(value_); }

 private:
  std::variant<T, Error> value_;
};

}  // namespace hexgraft
