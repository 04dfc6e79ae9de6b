// What the kernels need of <stddef.h>, for NVRTC; it knows size_t by itself.
#ifndef BLINK_NVRTC_STDDEF_H
#define BLINK_NVRTC_STDDEF_H

// `__INTADDR__` is how this compiler's front end makes an address a constant.
#define offsetof(type, member) __INTADDR__(&((static_cast<type *>(0))->member))

#endif  // BLINK_NVRTC_STDDEF_H
