/* Takes back what lanes_begin.h defined, and the level. */
#undef LEVEL_AVX512
#undef LEVEL_AVX2
#undef LEVEL_NEON

#undef TARGET
#undef NAME
#undef V
#undef WIDTH
#undef LOAD
#undef STORE
#undef LOAD_N
#undef STORE_N
#undef SET
#undef HALVES
#undef FROM_BF16
#undef FROM_F16
#undef ADD
#undef SUB
#undef MUL
#undef DIV
#undef FMA
#undef V_MAX
#undef V_MIN
#undef NEGATE
#undef HAS_NAN
#undef TIMES_POWER_OF_2
