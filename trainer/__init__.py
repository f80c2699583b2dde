"""fanin.trainer"""
