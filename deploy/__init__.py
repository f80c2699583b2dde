"""fanin.deploy"""
